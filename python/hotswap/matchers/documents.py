"""Documents packed into one row, for models with mixers of state spaces: a convolution and a scan must begin again where
a document does. transformers has three ways to say where: seq_idx, cu_seq_lens_q (both of a collator for packed rows) and
position_ids that begin again. Its forwards lose all three on their way to some mixers or others: MambaForCausalLM drops
every keyword, a layer of Jamba does not hand its own on to the mixer, the torch functions of all of them look at none.

Where a model's mixers run ours, its forward and those of its layers read whichever is given and call what has mixers in
it with seq_idx. Attention beside the mixers gets position_ids, from which transformers masks by documents.
"""

import functools
import inspect
from typing import Optional

import torch
from torch import nn

from hotswap.core.plain import own_forward
from hotswap.core.replacement import Replacement, class_of, decorated, inside, running, seeing

_GIVEN = ("seq_idx", "cu_seq_lens_q", "position_ids")
_MASK = "create_causal_mask"
_CACHES = ("past_key_values", "cache_params", "cache")


def has_mixers(module: nn.Module) -> bool:
    """Does a scan or a convolution of ours run in it?"""
    return any(getattr(running(part), "takes_documents", False) for part in module.modules())


def replacement_of(module: nn.Module) -> Optional[Replacement]:
    """The forward that hands the bounds of documents on, for a model or a layer around mixers of ours; None for others."""
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) or running(module) is not None or own_forward(module) is not None:
        return None
    if not has_mixers(module):
        return None
    is_model = hasattr(module, "config") and hasattr(module, "save_pretrained")
    forward = (_model_forward if is_model else _layer_forward)(class_of(module).forward)
    return Replacement("mamba", "documents", "mamba", (), forward)


@functools.lru_cache(maxsize=None)
def _model_forward(stock):
    def forward(self, *args, **kwargs):
        given = _arguments(stock, args, kwargs) if len(args) > 2 else kwargs
        if all(given.get(name) is None for name in _GIVEN):
            return stock(self, *args, **kwargs)
        return _with_documents(self, stock, _arguments(stock, args, kwargs))

    return _with_signature(forward, stock)


@functools.lru_cache(maxsize=None)
def _layer_forward(stock):
    def forward(self, *args, **kwargs):
        seq_idx = kwargs.get("seq_idx")
        return stock(self if seq_idx is None else _handing(self, seq_idx), *args, **kwargs)

    return _with_signature(forward, stock)


def _with_signature(forward, stock):
    """generate() and Trainer look there for what a model takes."""
    forward.__signature__ = inspect.signature(stock)
    return forward


@functools.lru_cache(maxsize=None)
def _names(stock) -> tuple:
    return tuple(inspect.signature(inside(stock)).parameters)[1:]


def _arguments(stock, args, kwargs) -> dict:
    return dict(zip(_names(stock), args)) | kwargs


def _with_documents(model, stock, given: dict):
    """stock's forward over packed rows; of rows that are not packed, as it is."""
    of_sequence = next(given[n] for n in ("input_ids", "inputs_embeds") if given.get(n) is not None)
    batch, length = of_sequence.shape[:2]
    past = next((given[n] for n in _CACHES if given.get(n) is not None), None)
    seq_idx = given.get("seq_idx")
    if seq_idx is None and given.get("cu_seq_lens_q") is not None:
        seq_idx = _of_lengths(given["cu_seq_lens_q"], batch, length)
    if seq_idx is None and past is None and given.get("attention_mask") is None:
        seq_idx = _of_positions(given.get("position_ids"), batch)
    if seq_idx is None:
        return stock(model, **given)
    given = dict(given, seq_idx=seq_idx.int())
    if past is None:
        given = _apart_in_attention(given, seq_idx, _names(stock))
        stock = _masking_by(stock, given.get("position_ids"))
    return stock(_handing(model, given["seq_idx"]), **given)


def _masking_by(stock, position_ids):
    """The same forward, whose mask is made with the positions also where it does not hand them on (Granite 4)."""
    if position_ids is None or _MASK not in inside(stock).__code__.co_names:
        return stock
    mask = functools.partial(inside(stock).__globals__[_MASK], position_ids=position_ids)
    return decorated(stock, seeing(inside(stock), {_MASK: mask}))


def _of_lengths(cu_seq_lens: torch.Tensor, batch: int, length: int) -> Optional[torch.Tensor]:
    """[1, length] int32; None of one document."""
    if cu_seq_lens.numel() <= 2:
        return None
    if batch != 1:
        raise ValueError(f"expected packed documents in one row, as cu_seq_lens_q says it; got {batch} rows; pass seq_idx instead")
    places = torch.arange(length, device=cu_seq_lens.device)
    return torch.searchsorted(cu_seq_lens[1:].long().contiguous(), places, right=True).int()[None]


def _of_positions(position_ids: Optional[torch.Tensor], batch: int) -> Optional[torch.Tensor]:
    """[batch, length] int32; None where every row counts on to its end. Not asked while a graph is captured."""
    if position_ids is None or position_ids.dim() != 2:
        return None
    begins = position_ids.diff(dim=-1, prepend=position_ids[:, :1] - 1) != 1
    captured = begins.is_cuda and torch.cuda.is_current_stream_capturing()
    if not captured and not begins.any():
        return None
    return begins.cumsum(-1).int().expand(batch, -1)


def _apart_in_attention(given: dict, seq_idx: torch.Tensor, names: tuple) -> dict:
    """Positions that begin again with each document, which keep documents apart where there is no mask and no cache. What a
    mask of padding hides becomes a document of its own, which no other sees."""
    mask = given.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        changes = (seq_idx.diff(dim=-1) != 0) | (mask[:, 1:] != mask[:, :-1])
        seq_idx = torch.nn.functional.pad(changes.cumsum(-1), (1, 0)).int()
        given = dict(given, seq_idx=seq_idx, attention_mask=None)
    if "use_cache" in names and given.get("use_cache") is None:
        given["use_cache"] = False  # of the last document alone, and attention's would hold all
    if "position_ids" not in names:  # no attention
        return given
    if given.get("use_cache"):
        raise ValueError("expected packed documents without a cache; got use_cache=True; generate from one document a row")
    if mask is None and given.get("position_ids") is not None:
        return given
    places = torch.arange(seq_idx.shape[1], device=seq_idx.device).expand_as(seq_idx)
    begins = torch.nn.functional.pad(seq_idx.diff(dim=-1) != 0, (1, 0), value=True)
    given["position_ids"] = places - places.where(begins, 0).cummax(-1).values
    return given


def _handing(module: nn.Module, seq_idx: torch.Tensor) -> "_Handing":
    return _handing_class(type(module))(module, seq_idx)


@functools.lru_cache(maxsize=None)
def _handing_class(of: type) -> type:
    """transformers asks type(self) for its forward."""
    return type(of.__name__, (_Handing,), {"forward": of.forward})


class _Handing:
    """A module as its own forward sees it, but that parts with mixers in them are called with seq_idx. The module itself,
    which other threads may be in, stays as it is."""

    def __init__(self, module: nn.Module, seq_idx: torch.Tensor):
        self.__dict__.update(module=module, seq_idx=seq_idx)

    @property
    def __class__(self):
        return type(self.__dict__["module"])

    def __getattr__(self, name):
        return self._of(getattr(self.__dict__["module"], name))

    def __setattr__(self, name, value):
        setattr(self.__dict__["module"], name, value)

    def __call__(self, *args, **kwargs):
        return self.__dict__["module"](*args, **{"seq_idx": self.__dict__["seq_idx"], **kwargs})

    def __iter__(self):
        return (self._of(part) for part in self.__dict__["module"])

    def __len__(self):
        return len(self.__dict__["module"])

    def __getitem__(self, index):
        return self._of(self.__dict__["module"][index])

    def _of(self, value):
        return _handing(value, self.__dict__["seq_idx"]) if isinstance(value, nn.Module) and has_mixers(value) else value
