"""May a backward write its gradients over what forward saved? Where nothing else can see those tensors, yes: that is two
buffers less at the moment when a training step holds most. What is not certain counts as no."""

import sys

import torch


def _references(tensors):
    """To each tensor's Python object, to the tensor, to its memory (a view's, or a detached one's, is the same)."""
    return [(sys.getrefcount(t), t._use_count(), torch._C._storage_Use_Count(t.untyped_storage()._cdata)) for t in tensors]


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()


def _references_if_alone():
    """To a saved tensor that only the graph knows: the numbers are this Python's and this torch's. None where they cannot be
    told. No backward runs here: that would start autograd's threads, and a forked child could not have its own."""
    known = (
        hasattr(torch.Tensor, "_use_count"),
        hasattr(torch._C, "_storage_Use_Count"),
        hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph"),
    )
    if not all(known) or sys.gettrace() is not None:  # a debugger refers to tensors, too
        return None
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(1, device="cpu", requires_grad=True)
        y = _Probe.apply(x * 1)
        saved = y.grad_fn.saved_tensors
    return _references(saved)[0] if type(saved[0]) is torch.Tensor else None


_ALONE = _references_if_alone()


def may_overwrite(saved) -> bool:
    """`saved`: the whole of ctx.saved_tensors, kept in no other variable; asked in backward."""
    if _ALONE is None or any(type(t) is not torch.Tensor or not t.is_contiguous() for t in saved):
        return False  # subclasses: being traced, or split over devices
    if torch.is_grad_enabled() or torch._C._autograd._get_current_graph_task_keep_graph():
        return False  # a second backward would read them
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return all(found <= alone for counts in _references(saved) for found, alone in zip(counts, _ALONE))
