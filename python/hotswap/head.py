"""A linear head and a loss over chunks of rows: hidden @ weight^T exists for a few rows at a time only.

The gradients are made in forward, as long as the head's weight is there: ZeRO-3 and FSDP gather it for that time alone.
Two kinds of losses stand on this: of one logit's log-probability a row (`selected_loss`: preferences, policies), and of
all logits of a row (`logits_loss`: distillation).
"""

import functools

import torch

from hotswap.packages import load

CHUNK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 28}  # of logits at once

_loss = load("loss")


def rows_at_once(device, row_bytes):
    """Of so many bytes each, that fit into CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES.get(device.type, CHUNK_BYTES["cuda"]) // row_bytes)


class Head:
    """hidden [rows, dim], weight [vocab, dim], bias [vocab] or None; its logits are times `scale`."""

    def __init__(self, hidden, weight, bias, scale=1.0, wanted=(False, False, False), dweight_dtype=None):
        self.hidden, self.weight, self.bias, self.scale = hidden, weight, bias, scale
        zeros = lambda t, dtype=None: torch.zeros_like(t, dtype=dtype, memory_format=torch.contiguous_format)
        self.dhidden = zeros(hidden) if wanted[0] else None
        self.dweight = zeros(weight, dweight_dtype) if wanted[1] else None  # summed over chunks in that type
        self.dbias = zeros(bias) if wanted[2] else None
        self._room = None  # of a chunk's logits

    @property
    def learns(self):
        return self.dweight is not None or self.dbias is not None

    def chunks(self, rows):
        """`rows`, an index or a number of rows from the first on, in parts whose logits fit into CHUNK_BYTES."""
        most = rows_at_once(self.hidden.device, self.weight.shape[0] * self.weight.element_size())
        if isinstance(rows, int):
            return [slice(begin, min(begin + most, rows)) for begin in range(0, rows, most)]
        return list(rows.split(most)) if len(rows) else []

    def logits(self, at):
        """(rows of hidden, their logits), the latter in memory that the next call takes again."""
        x = self.hidden[at]
        if self._room is None or len(self._room) < len(x):
            self._room = x.new_empty(len(x), self.weight.shape[0])
        out = self._room[: len(x)]
        add, beta = (out, 0) if self.bias is None else (self.bias, self.scale)
        return x, torch.addmm(add, x, self.weight.t(), beta=beta, alpha=self.scale, out=out)

    def learn(self, dlogits, x, scale, of_row=None):
        """dlogits, times scale and a number a row, in the gradients of weight and bias. The products are scaled and not
        the factors: small gradients over many rows would be lost to float16."""
        if self.dweight is not None:
            x = x if of_row is None else (x * of_row[:, None]).to(x.dtype)
            if self.dweight.dtype == x.dtype:
                self.dweight.addmm_(dlogits.t(), x, alpha=scale * self.scale)
            else:  # a part of the vocabulary at a time: the product is in x's type first
                for sums, some in zip(self.dweight.split(8192), dlogits.split(8192, dim=1)):
                    sums.add_(some.t() @ x, alpha=scale * self.scale)
        if self.dbias is not None:
            of_row = torch.ones_like(x[:, 0]) if of_row is None else of_row.to(dlogits.dtype)
            self.dbias.addmv_(dlogits.t(), of_row, alpha=scale * self.scale)


class _InForward(torch.autograd.Function):
    """work(head) -> (loss, *others), which leaves the loss's gradients in the head. The others have none."""

    @staticmethod
    def forward(ctx, work, with_gradients, options, hidden, weight, bias):
        wanted = [with_gradients and needed for needed in ctx.needs_input_grad[3:]]
        with torch.autocast(hidden.device.type, enabled=False):
            head = Head(hidden, weight, bias, wanted=wanted, **options)
            loss, *others = work(head)
        made = (head.dhidden, None if head.dweight is None else head.dweight.to(weight.dtype), head.dbias)
        ctx.made, ctx.made_in_forward = [g is not None for g in made], True
        ctx.save_for_backward(*(g for g in made if g is not None))
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return (loss, *others)

    @staticmethod
    @functools.partial(_loss._derivatives.first_order, "a loss over a linear head")
    def backward(ctx, dloss, *_):
        found = iter(_loss._autograd.of_made(ctx, dloss))
        return None, None, None, *(next(found) if made else None for made in ctx.made)


def _as_one_type(hidden, weight, bias):
    """As nn.Linear takes them under autocast; else all in hidden's type, which a head kept in float32 may differ from."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


@torch.compiler.disable
def _in_forward(work, hidden, weight, bias, **options):
    hidden = hidden.reshape(-1, hidden.shape[-1])
    if weight.shape[-1] != hidden.shape[-1]:
        got = f"{hidden.shape[-1]} and {weight.shape[-1]}"
        raise ValueError(f"expected hidden states and a head of one width; got {got}; pass those of one model")
    return _InForward.apply(work, torch.is_grad_enabled(), options, *_as_one_type(hidden, weight, bias))


def _valid_rows(target, ignore_index):
    """As many as there are where all count, else which."""
    rows = (target != ignore_index).nonzero().squeeze(1)
    return len(target) if len(rows) == len(target) else rows


def _selected(head, target, rows, ignore_index):
    """Log-probabilities [n] of target [n], 0 where it is ignored, and the last chunk: its rows of hidden, and in the place
    of their logits the gradients of each row's own -logp. head.dhidden, where wanted, holds what comes of these."""
    logps = torch.zeros(len(target), dtype=torch.float32, device=head.hidden.device)
    last = None
    for at in head.chunks(rows):
        last = _, logits = head.logits(at)
        logps[at] = -_loss.cross_entropy_(logits, target[at], ignore_index, reduction="none")
        if head.dhidden is not None:
            head.dhidden[at] = logits @ head.weight
    return logps, last


def selected_loss(loss_of, hidden, weight, bias, target, ignore_index=-100, temperature=1.0):
    """loss_of(logps) -> (loss, *others), of the log-probabilities of target [...] under the head's logits / temperature;
    float32, in target's shape, 0 where target is ignored. Plain torch, and the gradient flows through it.

    Every row's own gradient is known with its logits, but for one factor, which the loss gives in the end: hidden's
    gradient is made at once and multiplied by it then, the weight's, a sum of all rows, from logits made again. A head
    that does not learn costs two matrix products, one that does four, or three where all rows fit into one chunk.
    """
    shape, target = target.shape, target.reshape(-1).to(hidden.device)

    def work(head):
        rows = _valid_rows(target, ignore_index)
        logps, last = _selected(head, target, rows, ignore_index)
        if head.dhidden is None and not head.learns:
            return loss_of(logps.view(shape))
        with torch.enable_grad():
            logps.requires_grad_()
            loss, *others = loss_of(logps.view(shape))
            (of_row,) = torch.autograd.grad(loss, logps)
        # Gradients above are those of -logp. An ignored row has none, whatever the loss makes of its log-probability 0.
        of_row = torch.where(target == ignore_index, 0.0, -of_row)
        if head.dhidden is not None:
            torch.mul(head.dhidden, of_row[:, None] * head.scale, out=head.dhidden)
        if head.learns and last is not None:
            largest = of_row.abs().max().item()
            of_row = of_row / (largest or 1.0)
            *others_at, at = head.chunks(rows)
            head.learn(last[1], last[0], largest, of_row[at])  # still there
            for at in others_at:
                x, logits = head.logits(at)
                _loss.cross_entropy_(logits, target[at], ignore_index, reduction="none")
                head.learn(logits, x, largest, of_row[at])
        return (loss.detach(), *(t.detach() for t in others))

    return _in_forward(work, hidden, weight, bias, scale=1 / temperature)


def selected_logps(hidden, weight, bias, target, ignore_index=-100, temperature=1.0):
    """The log-probabilities alone, as of a model that does not learn."""
    with torch.no_grad():
        return selected_loss(lambda logps: (logps,), hidden, weight, bias, target, ignore_index, temperature)[0]


def logits_loss(loss_of, hidden, weight, bias, target=None, ignore_index=-100, dweight_dtype=None):
    """The mean over rows with a target that counts (None: all) of loss_of(logits, at) -> (losses' sum, *other sums), which
    leaves the first one's gradient in the place of the logits. `at`: which rows these are."""
    target = None if target is None else target.reshape(-1).to(hidden.device)

    def work(head):
        rows, sums = len(head.hidden) if target is None else _valid_rows(target, ignore_index), None
        count = max(1, rows if isinstance(rows, int) else len(rows))
        for at in head.chunks(rows) or [slice(0, 0)]:
            x, logits = head.logits(at)
            some = loss_of(logits, at)
            sums = some if sums is None else [s + t for s, t in zip(sums, some)]
            if head.dhidden is not None:
                head.dhidden[at] = torch.mul(logits @ head.weight, 1 / count)
            if head.learns:
                head.learn(logits, x, 1 / count)
        return [s / count for s in sums]

    return _in_forward(work, hidden, weight, bias, dweight_dtype=dweight_dtype)


def in_place(loss_of):
    """loss_of(logits) -> a sum, plain torch, as logits_loss wants it."""

    def with_gradient(logits):
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            loss = loss_of(leaf)
            (gradient,) = torch.autograd.grad(loss, leaf)
        logits.copy_(gradient)
        return loss.detach()

    return with_gradient


def sum_of_logits(hidden, weight, bias):
    """Of all logits of hidden [..., dim], float32: a sum of products is a product of sums."""
    with torch.no_grad():
        rows = hidden.reshape(-1, hidden.shape[-1])
        total = rows.sum(0, dtype=torch.float32) @ weight.sum(0, dtype=torch.float32)
        return total if bias is None else total + len(rows) * bias.sum(dtype=torch.float32)
