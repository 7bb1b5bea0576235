"""Which forward of ours gives the loss of a model without its logits: the one that agrees with the class's own forward.

Both run with parts instead of the model's: inside, a model that returns probe hidden states and keeps what it is called with; a head
of few words, in float64; a loss over its logits. They agree where they call the model inside with the same arguments, give the
same loss, and fill the same fields of their outputs. So no list says which families have which head, and a class whose
forward does something else between head and loss stays stock."""

import inspect
from typing import Callable, Optional

import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from hotswap.core.agree import NoDraws
from hotswap.core.agree import numbers as probe
from hotswap.core.view import view

WORDS, DIM, SHAPE = 11, 6, (2, 5)
LIMIT = 1e-5  # some classes make logits float32 before the loss; a softcap of 30 changes these losses by more than 1e-2


class _Outputs:
    """Of a model inside: every field that is read is there, so that what a class hands on of them can be compared."""

    def __init__(self, **fields):
        self.__dict__.update(fields)
        self.last_hidden_state = fields.get("last_hidden_state", fields.get("logits"))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"the field {name}"

    def __getitem__(self, at):
        return (self.last_hidden_state,)[at]


def _given(kwargs: dict) -> dict:
    return {name: value for name, value in kwargs.items() if value is not None and name not in ("labels", "return_dict")}


class _Inside(nn.Module):
    """Instead of a model without a head. Other attributes are the real one's: classes read scales there."""

    def __init__(self, real, seen: list, experts: int):
        super().__init__()
        self.__dict__.update(real=real, seen=seen, experts=experts)

    def __getattr__(self, name):
        return getattr(self.__dict__["real"], name)

    def forward(self, *args, **kwargs):
        self.seen.append((len(args), _given(kwargs)))
        router = (probe(SHAPE[0] * SHAPE[1], self.experts).double(),)
        return _Outputs(last_hidden_state=probe(*SHAPE, DIM).double() * 3, router_logits=router)


class _LanguageModel(_Inside):
    """Instead of a whole causal language model inside another, whose head it calls."""

    def __init__(self, real, seen: list, experts: int, head):
        super().__init__(real, seen, experts)
        self.__dict__["lm_head"] = head

    def forward(self, *args, **kwargs):
        self.seen.append((len(args), _given(kwargs)))
        return _Outputs(logits=self.lm_head(probe(*SHAPE, DIM).double() * 3))


def _loss(logits, labels, vocab_size=None, **kwargs):
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))


class _Head(nn.Module):
    """As loss.head_forward(): logits, or with labels the loss of them."""

    def forward(self, hidden, labels=None, softcap=0.0, **options):
        logits = hidden @ probe(WORDS, DIM).double().T * 2
        if labels is None:
            return logits
        return _loss(softcap * torch.tanh(logits / softcap) if softcap else logits, labels)


def _run(model, forward: Callable, more: dict):
    """(loss, fields that are filled, calls of the model inside) of forward(view of the model, input_ids, labels, ...)."""
    seen: list = []
    experts, head = getattr(model, "num_experts", None) or 4, _Head()
    own = dict(training=False, loss_function=_loss, get_input_embeddings=lambda: lambda ids: probe(*SHAPE, DIM))
    if hasattr(model, "lm_head"):
        own |= dict(lm_head=head, model=_Inside(model.model, seen, experts))
    else:
        own |= dict(language_model=_LanguageModel(model.language_model, seen, experts, head))
    ids = torch.arange(SHAPE[0] * SHAPE[1]).view(SHAPE)
    outputs = forward(view(model, **own), input_ids=ids, labels=ids % WORDS, **more)
    filled = {name for name, value in outputs.items() if value is not None and name not in ("loss", "logits")}
    return outputs.loss, filled, seen


def _same_calls(ours: list, stock: list) -> bool:
    def same(a, b):
        return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b

    return len(ours) == len(stock) and all(
        a[0] == b[0] and a[1].keys() == b[1].keys() and all(same(a[1][name], b[1][name]) for name in a[1])
        for a, b in zip(ours, stock)
    )


def _agrees(model: PreTrainedModel, stock: Callable, ours: Callable) -> bool:
    both = [{}, {"output_router_logits": True}] if "output_router_logits" in inspect.signature(stock).parameters else [{}]
    for more in both:
        try:
            expected, fields, calls = _run(model, stock, more)
            got, our_fields, our_calls = _run(model, ours, more)
        except Exception:  # whatever a class raises without its own parts: it is not the head that we know
            return False
        near = torch.is_tensor(expected) and torch.is_tensor(got) and bool((got.double() - expected.double()).abs() <= LIMIT * expected.abs())
        if not near or fields != our_fields or not _same_calls(our_calls, calls):
            return False
    return True


def first_that_agrees(model: PreTrainedModel, stock: Callable, candidates: list) -> Optional[Callable]:
    """The first of the candidates whose `without_logits(view, options, **inputs)` agrees with the class's own forward on this model's
    config; None: none does. Not kept for the class: configs differ in what is between head and loss."""
    with torch.device("cpu"), torch.no_grad(), NoDraws(), torch.autocast("cpu", enabled=False):
        for candidate in candidates:
            ours = lambda model, without_logits=candidate.without_logits, **inputs: without_logits(model, {}, **inputs)
            if _agrees(model, stock, ours):
                return candidate
    return None
