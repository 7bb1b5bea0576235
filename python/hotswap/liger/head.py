"""A linear head and a loss over chunks of rows: hidden @ weight^T exists for a few rows at a time only.

The gradients are made in forward, as long as the head's weight is there: ZeRO-3 and FSDP gather it for that time alone.
Two kinds of losses stand on this: of one logit's log-probability a row (`selected_loss`: preferences, policies), and of
all logits of a row (`logits_loss`: distillation).
"""

import functools

import torch

from hotswap.core.packages import load

CHUNK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 28}  # of logits at once
GROUP_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}  # of logits at once where a chunk less would cost a second product

_loss = load("loss")


def rows_at_once(device, row_bytes, limit=None):
    """Rows of row_bytes each that fit into limit (CHUNK_BYTES, or GROUP_BYTES): at least one, and from 128 on a multiple of 128,
    with which products are fast."""
    limit = CHUNK_BYTES if limit is None else limit
    rows = max(1, limit.get(device.type, limit["cuda"]) // row_bytes)
    return rows if rows < 128 else rows - rows % 128


def times(rows, of_row):
    """rows [n, dim] by a float32 factor each, rounded once."""
    return torch.mul(rows, of_row[:, None], out=torch.empty_like(rows))


class Head:
    """hidden [rows, dim], weight [vocab, dim], bias [vocab] or None; its logits are times `scale`."""

    def __init__(self, hidden, weight, bias, scale=1.0, wanted=(False, False, False), dweight_dtype=None):
        self.hidden, self.weight, self.bias, self.scale = hidden, weight, bias, scale
        dense = dict(memory_format=torch.contiguous_format)
        self.dhidden = torch.zeros_like(hidden, **dense) if wanted[0] else None
        self.dweight = torch.empty_like(weight, dtype=dweight_dtype, **dense) if wanted[1] else None  # of all chunks
        self.dbias = torch.zeros_like(bias, **dense) if wanted[2] else None
        self._learned = False
        self._room = None  # of a chunk's logits

    @property
    def learns(self):
        return self.dweight is not None or self.dbias is not None

    def rows_at_once(self, limit=None):
        return rows_at_once(self.hidden.device, self.weight.shape[0] * self.weight.element_size(), limit)

    def chunks(self, rows):
        """`rows`, an index or a number of rows from the first on, in parts whose logits fit into CHUNK_BYTES."""
        count = self.rows_at_once()
        if isinstance(rows, int):
            return [slice(begin, min(begin + count, rows)) for begin in range(0, rows, count)]
        return list(rows.split(count)) if len(rows) else []

    def logits(self, at):
        """(rows of hidden, their logits), the latter in memory that the next call takes again."""
        x = self.hidden[at] if isinstance(at, slice) else self.hidden.index_select(0, at)
        if self._room is None or len(self._room) < len(x):
            self._room = None  # given back first
            self._room = x.new_empty(len(x), self.weight.shape[0])
        out = self._room[: len(x)]
        add, beta = (out, 0) if self.bias is None else (self.bias, self.scale)
        return x, torch.addmm(add, x, self.weight.t(), beta=beta, alpha=self.scale, out=out)

    def learn(self, dlogits, x, scale, of_row=None):
        """dlogits, times scale and a number a row, in the gradients of weight and bias. The products are scaled and not
        the factors: small gradients over many rows would be lost to float16."""
        if self.dweight is not None:
            x = x if of_row is None else times(x, of_row)
            if self.dweight.dtype == x.dtype:  # the first product is written, those that follow are added
                if x.is_cuda and x.dtype == torch.bfloat16 and scale * self.scale == 1:
                    _loss._package.ops.add_product_(self.dweight, dlogits, x.contiguous(), self._learned)
                else:
                    self.dweight.addmm_(dlogits.t(), x, beta=int(self._learned), alpha=scale * self.scale)
            else:  # a part of the vocabulary at a time: the product is in x's type first
                if not self._learned:
                    self.dweight.zero_()
                for sums, some in zip(self.dweight.split(8192), dlogits.split(8192, dim=1)):
                    sums.add_(some.t() @ x, alpha=scale * self.scale)
        if self.dbias is not None:
            of_row = torch.ones_like(x[:, 0]) if of_row is None else of_row.to(dlogits.dtype)
            self.dbias.addmv_(dlogits.t(), of_row, alpha=scale * self.scale)
        self._learned = True

    def gradients(self):
        """Of hidden, weight and bias, None where not required."""
        if self.dweight is not None and not self._learned:
            self.dweight.zero_()
        return self.dhidden, None if self.dweight is None else self.dweight.to(self.weight.dtype), self.dbias


class _InForward(torch.autograd.Function):
    """work(head) -> (loss, *others), which leaves the loss's gradients in the head. The others have none."""

    @staticmethod
    def forward(ctx, work, with_gradients, options, hidden, weight, bias):
        wanted = [with_gradients and needed for needed in ctx.needs_input_grad[3:]]
        with torch.autocast(hidden.device.type, enabled=False):
            head = Head(hidden, weight, bias, wanted=wanted, **options)
            loss, *others = work(head)
            made = head.gradients()
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


class Targets:
    """Which logit of each row a loss takes, and which rows' gradients depend on each other. One wait for the device.

    target [answers, ...]: rows with ignore_index take part in no product. groups: None, and every row's gradient depends
    on the log-probabilities of all rows; lists of answers, each group's on its own; "rows", each row's on its own.
    """

    def __init__(self, target, ignore_index=-100, groups=None):
        self.shape, self.flat, self.ignore_index = target.shape, target.reshape(-1), ignore_index
        self._each_row = groups == "rows"
        counts = (target != ignore_index).cpu()  # from here to the first product the device has nothing to do
        rows = torch.arange(counts.numel()).view(counts.shape)
        parts = [rows[counts]] if groups is None or self._each_row else [rows[g][counts[g]] for g in map(list, groups)]
        self._sizes = [len(part) for part in parts]
        self._rows = torch.cat(parts).to(target.device)

    def chunks(self, rows):
        """All rows that count, in chunks of at most `rows`."""
        return list(self._rows.split(rows)) if len(self._rows) else []

    def groups(self, chunk, whole):
        """[[rows, ...], ...]: groups, each in chunks, one where it has at most `whole` rows. Small groups share a chunk."""
        if self._each_row:
            return [[at] for at in self.chunks(chunk)]
        joined = []
        for size in filter(None, self._sizes):
            if joined and joined[-1] + size <= chunk:
                joined[-1] += size
            else:
                joined.append(size)
        groups = self._rows.split(joined) if joined else ()
        return [[rows] if len(rows) <= whole else list(rows.split(chunk)) for rows in groups]


def _with_gradient(loss_of, logps):
    """(loss, *others), and the loss's gradient by -logps."""
    with torch.enable_grad():
        leaf = logps.detach().requires_grad_()
        loss, *others = loss_of(leaf)
        (gradient,) = torch.autograd.grad(loss, leaf)
    return (loss.detach(), *(t.detach() for t in others)), -gradient


def _made(head, at, targets, logps):
    """Of rows `at`, with their log-probabilities into logps: the rows of hidden, the gradients of each row's own -logp in the
    place of its logits, and what comes of these for hidden, where required."""
    x, logits = head.logits(at)
    losses = _loss.cross_entropy_(logits, targets.flat[at], targets.ignore_index, reduction="none")
    logps.index_copy_(0, at, losses.neg_())
    return x, logits, None if head.dhidden is None else logits @ head.weight


def _learned(head, chunks, targets, logps, loss_of):
    """A group's rows, in chunks, whose gradients depend on their own log-probabilities only: (loss, *others) as far as rows
    went yet. The last chunk's gradients are still there when the factors are known, those of others are made again."""
    *others, last = chunks
    for at in others:
        _, _, dx = _made(head, at, targets, logps)
        if dx is not None:
            head.dhidden.index_copy_(0, at, dx)
    x, dlogits, dx = _made(head, last, targets, logps)
    result, gradient = _with_gradient(loss_of, logps)
    factors = [gradient[at] for at in chunks]
    if dx is not None:
        head.dhidden.index_copy_(0, last, times(dx, factors[-1] * head.scale))
        for at, of_row in zip(others, factors):
            head.dhidden.index_copy_(0, at, times(head.dhidden[at], of_row * head.scale))
    if head.learns:
        small = x.dtype == torch.float16  # whose range the factors of many rows may leave: they are near 1 then
        top = (max(of_row.abs().max() for of_row in factors).item() or 1.0) if small else 1.0
        head.learn(dlogits, x, top, factors[-1] / top)
        for at, of_row in zip(others, factors):
            x, dlogits = head.logits(at)
            _loss.cross_entropy_(dlogits, targets.flat[at], targets.ignore_index, reduction="none")
            head.learn(dlogits, x, top, of_row / top)
    return result


def selected_loss(loss_of, hidden, weight, bias, targets, temperature=1.0):
    """loss_of(logps) -> (loss, *others), of the log-probabilities of `targets` under the head's logits / temperature;
    float32, in the targets' shape, 0 where they are ignored. Plain torch, and the gradient flows through it. It is called
    once a group, when the log-probabilities of those that follow are not there yet.

    Every row's own gradient is known with its logits, but for one factor, which the loss gives with its whole group: hidden's
    gradient is made at once and multiplied by it then. The weight's is a sum of all rows: a group's logits are held until
    their factors are known, where they fit into GROUP_BYTES, and made a second time, chunk by chunk, where they do not. So a
    head that learns costs three matrix products, or four, and one that does not two.
    """

    def work(head):
        logps = torch.zeros(len(targets.flat), dtype=torch.float32, device=head.hidden.device)
        shaped = lambda logps: loss_of(logps.view(targets.shape))
        if head.learns:
            groups = targets.groups(head.rows_at_once(), head.rows_at_once(GROUP_BYTES))
        else:
            chunks = targets.chunks(head.rows_at_once())
            groups = [chunks] if chunks and head.dhidden is not None else []
            for at in [] if groups else chunks:
                logits = head.logits(at)[1]
                logps[at] = -_loss.cross_entropy(
                    logits, targets.flat[at], targets.ignore_index, reduction="none", dtype=torch.float32
                )
        if not groups:
            return shaped(logps)
        for chunks in groups:
            result = _learned(head, chunks, targets, logps, shaped)
        return result

    return _in_forward(work, hidden, weight, bias, scale=1 / temperature)


def selected_logps(hidden, weight, bias, targets, temperature=1.0):
    """The log-probabilities alone, as of a model that does not learn."""
    with torch.no_grad():
        return selected_loss(lambda logps: (logps,), hidden, weight, bias, targets, temperature)[0]


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


def sums_of_logits(hidden, weight, bias):
    """Of all logits of each answer, hidden [answers, time, dim]: [answers] float32. A sum of products is a product of sums."""
    with torch.no_grad():
        sums = hidden.sum(1, dtype=torch.float32) @ weight.sum(0, dtype=torch.float32)
        return sums if bias is None else sums + hidden.shape[1] * bias.sum(dtype=torch.float32)
