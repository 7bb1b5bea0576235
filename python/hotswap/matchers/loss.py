"""The loss of a causal language model: over its logits, or straight from the hidden states without ever holding them."""

import functools
import inspect
from dataclasses import make_dataclass
from typing import Optional

import torch
from torch import nn
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import can_return_tuple

from hotswap.core.arguments import check_accum_dtype
from hotswap.core.packages import load, why_not_for
from hotswap.core.plain import SHARDING, accelerate_hook, has_global_hooks, has_hooks, is_parametrized, odd_weight, wrapped_forward
from hotswap.core.replacement import Replacement, cache_name, class_of
from hotswap.core.view import view
from hotswap.matchers.heads import first_that_agrees

_package = load("loss")  # here, not in a call: torch.compile traces the calls
_on_logits = _package.layers.ForCausalLMLoss.forward
_linear_cross_entropy, CrossEntropyOutput = _package.linear_cross_entropy, _package.CrossEntropyOutput
_shifted, _per_item = _package.functional.shifted, _package.functional.per_item

# ---- options of the loss that a model's forward is given ----------------------------------------------------------

# Liger's words -> ours
OPTIONS = {
    "ce_weight": "class_weight",
    "label_smoothing": "label_smoothing",
    "lse_square_scale": "z_loss",
    "use_token_scaling": "token_scaling",
    "accum_dtype": "float32_dweight",
    "return_z_loss": "return_z_loss",
    "return_token_accuracy": "return_token_accuracy",
    "return_predicted_tokens": "return_predicted_tokens",
}


def take_options(kwargs: dict) -> dict:
    """Takes the options of the loss out of a forward's; those that are not at their default, in our words."""
    found = {ours: kwargs.pop(name) for name, ours in OPTIONS.items() if name in kwargs}
    if "float32_dweight" in found:
        found["float32_dweight"] = check_accum_dtype(found["float32_dweight"])
    return {name: value for name, value in found.items() if torch.is_tensor(value) or value}


def set_aside(result, aside: dict):
    """The loss alone; what was asked for beside it goes into `aside`."""
    if not isinstance(result, CrossEntropyOutput):
        return result
    aside.update({name: value for name, value in vars(result).items() if name != "loss"})
    return result.loss


@functools.lru_cache(maxsize=None)
def _with_metrics(output_class: type):
    tensor = Optional[torch.Tensor]
    fields = [(name, tensor, None) for name in ("z_loss", "token_accuracy", "predicted_tokens")]
    return make_dataclass(f"{output_class.__name__}WithMetrics", fields, bases=(output_class,))


def with_metrics(outputs, aside: dict):
    """A model's outputs, and with them what its loss set aside."""
    return _with_metrics(type(outputs))(**outputs, **aside) if aside else outputs


# ---- the two losses -----------------------------------------------------------------------------------------------


def _of_logits(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **options):
    options.pop("float32_dweight", None)  # the head's gradient is torch's GEMM, whose sums are float32
    if why_not_for("loss", logits):
        if not options:
            return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels)
        logits = logits.float()  # as that one does
    return _on_logits(None, logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **options)


def causal_lm_loss(
    logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs
):
    """transformers' ForCausalLMLoss by our op; a plain function, as the model's own is."""
    if (chosen := LOSS_MAPPING["ForCausalLM"]) is not ForCausalLMLoss:  # another since
        given = dict(num_items_in_batch=num_items_in_batch, ignore_index=ignore_index, shift_labels=shift_labels)
        return chosen(logits, labels, vocab_size, **given, **kwargs)
    options = take_options(kwargs)
    if returned := [name for name in options if name.startswith("return_")]:
        raise NotImplementedError(
            f"expected {returned[0]} of a model that is bound with fused_linear_cross_entropy; got one with cross_entropy "
            "alone, whose outputs have no place for it; bind the other, or compute it from the logits"
        )
    return _of_logits(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **options)


def linear_causal_lm_loss(
    hidden, weight, bias, labels, *, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **options
):
    """hidden [batch, time, dim], weight [vocab, dim], labels [batch, time]; as ForCausalLMLoss of the logits. options:
    linear_cross_entropy's."""
    target = _shifted(labels, shift_labels, ignore_index, hidden.device)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    reduction = "mean" if num_items_in_batch is None else "sum"
    result = _linear_cross_entropy(
        hidden, weight, target, bias, ignore_index=ignore_index, reduction=reduction, **options
    )
    return _per_item(result, num_items_in_batch)


def logits_and_loss(model, stock, options, *args, **kwargs):
    """stock, the class's own forward, with logits and a loss that has these options."""
    aside: dict = {}

    def loss(logits, labels, vocab_size, **given):
        return set_aside(_of_logits(logits, labels, vocab_size, **given, **options), aside)

    return with_metrics(stock(view(model, loss_function=loss), *args, return_dict=True, **kwargs), aside)


def head_of(model):
    """Its lm_head, or that of the whole causal language model inside (Llama 4)."""
    return getattr(model if hasattr(model, "lm_head") else getattr(model, "language_model", None), "lm_head", None)


def head_forward(self, input, labels=None, **options):
    """nn.Linear's forward, or with labels the loss. Inside the head's own call, so that FSDP's and ZeRO's hooks, which
    gather its weight, run as ever."""
    if labels is not None or options.get("shift_labels") is not None:
        return linear_causal_lm_loss(input, self.weight, self.bias, labels, **options)
    return nn.functional.linear(input, self.weight, self.bias)


def _loss_is_trainers(model):
    """With use_liger_kernel Trainer passes skip_logits=True whenever it evaluates the loss alone, also where it keeps the labels
    for a loss of its own (label smoothing, compute_loss_func), which it computes from the logits."""
    return model.__dict__.get("bound_by_trainer", False)


HEAD = Replacement("fused_linear_cross_entropy", "lm_head", "loss", (), head_forward)


# ---- what an instance says ----------------------------------------------------------------------------------------


def why_not_loss(model, bound: bool = False) -> str:
    """Somebody's own loss stays."""
    if LOSS_MAPPING.get(getattr(model, "loss_type", None)) is not ForCausalLMLoss:
        return "another loss was chosen since"
    found, binding = getattr(model, "_loss_function", None), model.__dict__.get("_hotswap")
    ours = None if binding is None else binding.put.get("_loss_function", (None,))[0]
    if found is None or found is ours:
        return ""
    return f"it has a loss_function of its own, {getattr(found, '__qualname__', type(found).__qualname__)}"


def why_not_loss_of_class(model, bound: bool = False) -> str:
    """As why_not_loss(), and a class's own loss stays too. Checked at binding time: torch.compile traces the calls."""
    own = class_of(model).loss_function is not PreTrainedModel.loss_function
    return f"{class_of(model).__name__} has a loss_function of its own" if own else why_not_loss(model, bound)


def why_logits(model, bound: bool = True) -> str:
    """Why the head must be called as ever, and the loss come from its logits; "": the head may give the loss. bound: the model is
    bound to that."""
    head = head_of(model)
    head = getattr(head, "_fsdp_wrapped_module", head)
    if not isinstance(head, nn.Linear) or class_of(head).forward is not nn.Linear.forward:
        return f"lm_head is a {type(head).__name__}"
    if wrapped_forward(head) is not None:
        return "lm_head has a forward of its own"
    if has_hooks(head, but_from=SHARDING) or has_global_hooks():
        return "lm_head has hooks"
    if hook := accelerate_hook(head, but_placing=True):
        return f"lm_head has accelerate's {hook}"
    if is_parametrized(head):
        return "lm_head is parametrized"
    if name := odd_weight(head):
        return f"the weight of lm_head is a {name}"
    if why := why_not_for("loss", head.weight):
        return why
    binding = head.__dict__.get("_hotswap")
    exchanged = bound and (binding is None or binding.replacement is not HEAD)
    return "lm_head was exchanged since: kernelize again" if exchanged else ""


@functools.lru_cache(maxsize=None)
def fused_forward(model_class: type):
    """The forward of `model_class` that gives a loss without logits: in training whenever there are labels, else where
    skip_logits=True asks for it. Without labels, and where logits are wanted, the class's own forward runs."""
    stock = model_class.forward
    scope = inspect.unwrap(stock).__globals__
    cached = cache_name(stock)

    @can_return_tuple
    def without_logits(self, options, labels, logits_to_keep=0, output_router_logits=None, **kwargs):
        config, balancing_loss = self.config, scope.get("load_balancing_loss_func")
        if balancing_loss is not None:
            if output_router_logits is None:
                output_router_logits = config.output_router_logits
            kwargs["output_router_logits"] = output_router_logits
        outputs = self.model(**kwargs)
        hidden = outputs.last_hidden_state
        if not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            hidden = hidden[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep, :]
        if (scaling := getattr(config, "logits_scaling", None)) is not None:
            hidden = hidden / scaling
        if (multiplier := getattr(config, "lm_head_multiplier", None)) is not None:
            hidden = hidden * multiplier
        options |= {k: kwargs[k] for k in ("num_items_in_batch", "ignore_index", "shift_labels") if k in kwargs}
        softcap, aside = getattr(config, "final_logit_softcapping", None) or 0.0, {}
        loss = set_aside(self.lm_head(hidden, labels=labels, softcap=softcap, **options), aside)
        common = dict(
            logits=None,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{cached: getattr(outputs, cached)},
        )
        if balancing_loss is None:
            return with_metrics(CausalLMOutputWithPast(loss=loss, **common), aside)
        aux_loss = None
        if output_router_logits:
            aux_loss = balancing_loss(
                outputs.router_logits, self.num_experts, self.num_experts_per_tok, kwargs.get("attention_mask")
            )
            loss = loss + self.router_aux_loss_coef * aux_loss.to(loss.device)
        more = dict(aux_loss=aux_loss, router_logits=outputs.router_logits)
        return with_metrics(MoeCausalLMOutputWithPast(loss=loss, **more, **common), aside)

    with_logits = can_return_tuple(lambda self, options, **kwargs: logits_and_loss(self, stock, options, **kwargs))

    @functools.wraps(stock)  # Trainer and generate() read the signature
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        skip_logits=None,
        **kwargs,
    ):
        kwargs.update(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
        )
        if past_key_values is not None:
            kwargs[cached] = past_key_values
        if why_not_loss(self):
            return stock(self, labels=labels, **kwargs)
        has_labels = labels is not None or kwargs.get("shift_labels") is not None
        options = take_options(kwargs) if has_labels else {}
        if skip_logits is None:  # inside a model whose loss it is (Llama 4) this one only returns logits
            inside = not isinstance(self.lm_head, nn.Module) or hasattr(self.lm_head, "defers")
            skip_logits = self.training and has_labels and not inside
        if not skip_logits and options:
            return with_logits(self, options, labels=labels, **kwargs)
        if not skip_logits or not has_labels and _loss_is_trainers(self):
            return stock(self, labels=labels, **kwargs)
        if not has_labels:
            raise ValueError("skip_logits=True: expected labels or shift_labels; got neither; pass one, or leave it out")
        if why_logits(self):
            return with_logits(self, options, labels=labels, **kwargs)
        return without_logits(self, options, labels, **kwargs)

    forward.without_logits = without_logits  # for heads.py
    return forward


def _with_head(model, head, loss):
    """A view of the model with another head and loss; the head may be that of the language model inside."""
    if hasattr(model, "lm_head"):
        return view(model, lm_head=head, loss_function=loss)
    return view(model, language_model=view(model.language_model, lm_head=head), loss_function=loss)


@functools.lru_cache(maxsize=None)
def deferred_forward(model_class: type, softcaps: bool):
    """As fused_forward, by the class's own forward, which sees a head that returns the hidden states and a loss that calls the
    model's head with them. softcaps: between head and loss the class scales and softcaps logits as its text config has it."""
    stock = model_class.forward

    @can_return_tuple
    def without_logits(self, options, *args, **kwargs):
        hidden_states: list = []
        aside: dict = {}

        def head(hidden):
            hidden_states.append(hidden)  # kept here, because the class may softcap what the head returns
            return hidden

        def loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **_):
            given = dict(num_items_in_batch=num_items_in_batch, ignore_index=ignore_index, shift_labels=shift_labels, **options)
            if not hidden_states:  # the language model inside has a forward of its own, which called the real head
                return set_aside(_of_logits(logits, labels, vocab_size, **given), aside)
            hidden = hidden_states[-1]
            if softcaps:
                config = self.config.get_text_config()
                if (multiplier := getattr(config, "output_multiplier", None)) is not None:
                    hidden = hidden * multiplier
                given["softcap"] = getattr(config, "final_logit_softcapping", None) or 0.0
            return set_aside(head_of(self)(hidden, labels=labels, **given), aside)

        outputs = stock(_with_head(self, head, loss), *args, return_dict=True, **kwargs)
        return with_metrics(type(outputs)(**{**outputs, "logits": None}), aside)

    @can_return_tuple
    def with_logits(self, options, *args, **kwargs):
        return logits_and_loss(self, stock, options, *args, **kwargs)

    @functools.wraps(stock)
    def forward(self, *args, labels=None, skip_logits=None, **kwargs):
        if why_not_loss(self):
            return stock(self, *args, labels=labels, **kwargs)
        options = {} if labels is None else take_options(kwargs)
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        if not skip_logits and options:
            return with_logits(self, options, *args, labels=labels, **kwargs)
        if not skip_logits or labels is None and _loss_is_trainers(self):
            return stock(self, *args, labels=labels, **kwargs)
        if labels is None:
            raise ValueError("skip_logits=True: expected labels; got none; pass them, or leave it out")
        if why_logits(self):
            return with_logits(self, options, *args, labels=labels, **kwargs)
        return without_logits(self, options, *args, labels=labels, **kwargs)

    forward.defers = True
    forward.without_logits = without_logits
    return forward


def positional(forward) -> list[str]:
    return [name for name, p in inspect.signature(forward).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]


# What a caller of fused_forward() may pass by its position: a class with another order has the other forward.
POSITIONAL = "self input_ids attention_mask position_ids past_key_values inputs_embeds labels use_cache".split()


def _fusing(model):
    """The forward without logits that agrees with the class's own; or None."""
    model_class, stock = class_of(model), class_of(model).forward
    if head_of(model) is None or not stock.__module__.startswith("transformers.models."):
        return None
    candidates = [deferred_forward(model_class, softcaps) for softcaps in (True, False)]
    if hasattr(model, "lm_head") and hasattr(model, "model") and positional(stock)[: len(POSITIONAL)] == POSITIONAL:
        candidates.insert(0, fused_forward(model_class))
    return first_that_agrees(model, stock, candidates)


OPS = ("cross_entropy_fwd", "cross_entropy_bwd")


def stale_loss(model) -> str:
    """What a model's report has to say of the loss that is bound, and that its loss_type does not name any more; "": nothing. The
    attribute that transformers looks at first holds the loss, whatever loss_type becomes."""
    if model.__dict__.get("_loss_function") is not causal_lm_loss:
        return ""
    if LOSS_MAPPING.get(loss_type := getattr(model, "loss_type", None)) is ForCausalLMLoss:
        return ""
    return f"loss_type became {loss_type!r} after this was bound, and is not followed: call kernelize again"


def _with_its_head(replacement: Replacement, model) -> list:
    """[(module, Replacement, what is put into its dictionary)] of a model whose head gives the loss."""
    defers = getattr(replacement.forward, "defers", False)
    return [
        (head_of(model), HEAD, {"defers": True} if defers else {}),
        (model, replacement, {"_loss_function": causal_lm_loss} if defers else {}),
    ]


def replacements(model) -> list[Replacement]:
    own = dict(attribute="_loss_function", why_not=why_not_loss_of_class)
    found = [Replacement("cross_entropy", "ForCausalLMLoss", "loss", OPS, causal_lm_loss, **own)]
    if forward := _fusing(model):
        ops = ("linear_cross_entropy", "linear_cross_entropy_fwd")
        why_not = lambda model, bound: why_not_loss_of_class(model) or why_logits(model, bound)
        fused = Replacement(HEAD.option, "LinearCrossEntropy", "loss", ops, forward, why_not=why_not)
        found.append(fused._replace(bound_with=functools.partial(_with_its_head, fused)))
    return found
