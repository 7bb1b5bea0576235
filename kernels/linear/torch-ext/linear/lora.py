"""A frozen weight and a LoRA adapter beside it, in training: W x + scale B A x in one autograd node.

What autograd makes of it casts x to the adapter's dtype and back, scales and adds in passes of their own, and does so again for each
gradient. Here the small products come first and the base's is added to them (beta = 1): what it reads for that is hidden beneath its
arithmetic. All in x's dtype, summed up in float32: of a float32 adapter beside an x of 16 bits a rounded copy multiplies, as under
autocast; it learns in float32.
"""

import functools

import torch

from ._derivatives import first_order


def dtype_of(x, a):
    """That the adapter multiplies in."""
    return x.dtype if x.dtype.itemsize == 2 else torch.promote_types(x.dtype, a.dtype)


def _wide_product(left, right):
    """In float32 at least: a library may else add parts of a long sum in 16 bits."""
    if left.dtype.itemsize > 2:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


class AdaptedProduct(torch.autograd.Function):
    """x [..., in], read (x with dropout; None: x), weight [out, in], bias, a [rank, in], b [out, rank] -> [..., out]. weight and bias
    have no gradient."""

    @staticmethod
    def forward(ctx, x, read, weight, bias, a, b, scale):
        ctx.scale = scale
        kind = dtype_of(x, a)
        rows = x.reshape(-1, x.shape[-1])
        source = rows if read is None else read.reshape(rows.shape)
        low = _wide_product(source.to(kind), a.to(kind).t()).to(kind)
        change = (b * scale).to(kind).t()
        y = low @ change if bias is None else torch.addmm(bias.to(kind), low, change)
        y = y.to(x.dtype).addmm_(rows, weight.t())
        ctx.save_for_backward(x if read is None else read, weight, a, b, low)
        ctx.drops = read is not None
        # No view of another tensor: what comes after may write its own gradient there.
        return torch.ops.aten._unsafe_view.default(y, [*x.shape[:-1], y.shape[-1]])

    @staticmethod
    @functools.partial(first_order, "a frozen weight with an adapter")
    def backward(ctx, dy):
        source, weight, a, b, low = ctx.saved_tensors
        needs_x, needs_read = ctx.needs_input_grad[:2]
        kind, rows = low.dtype, dy.reshape(-1, dy.shape[-1])
        grad, its_a = rows.to(kind), a.to(kind)
        dlow = _wide_product(grad, (b * ctx.scale).to(kind)).to(kind)
        db = (_wide_product(grad.t(), low) * ctx.scale).to(b.dtype)
        da = _wide_product(dlow.t(), source.reshape(-1, source.shape[-1]).to(kind)).to(a.dtype)
        dx = dread = None
        if ctx.drops:
            dread = (dlow @ its_a).to(source.dtype).view_as(source) if needs_read else None
            dx = (rows @ weight).view_as(source) if needs_x else None
        elif needs_x:
            dx = (dlow @ its_a).to(dy.dtype).addmm_(rows, weight).view_as(source)
        return dx, dread, None, None, da, db, None
