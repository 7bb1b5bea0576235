"""The built package through the user's door: kernels/conftest.py loads it. Values are the ops' own tests'; here is what
Python adds: flash-attention's functions, gradients, the compiler."""

import inspect
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

LIMIT = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
OPTIONS = dict(softmax_scale=0.3, causal=True, window_size=(6, 6), softcap=3.0, attention_chunk=9)


def close(got, want, factor=1):
    assert got.shape == want.shape
    assert (got.double() - want.double()).norm() <= factor * LIMIT[got.dtype] * want.double().norm()


def inputs(dtype=torch.float32, rows=13, keys=17, grad=True):
    q = torch.randn(2, rows, 4, 16, dtype=dtype, requires_grad=grad)
    k, v = (torch.randn(2, keys, 2, d, dtype=dtype, requires_grad=grad) for d in (16, 12))
    return q, k, v


def plain(q, k, v, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None, sinks=None, chunk=0):
    """In float64, as a book has it."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    x = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    x = torch.tanh(x / softcap) * softcap if softcap else x
    i, j = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None], torch.arange(k.shape[2])
    x = x - slopes.double().view(-1, 1, 1) * (i - j).abs() if slopes is not None else x
    left, right = window[0], 0 if causal else window[1]
    seen = torch.ones_like(i * j, dtype=torch.bool)
    seen = seen & (j >= i - left) if left >= 0 else seen
    seen = seen & (j <= i + right) if right >= 0 else seen
    seen = seen & (j // chunk == i // chunk) if chunk else seen
    x = x.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        x = torch.cat([x, sinks.double().view(1, -1, 1, 1).expand(*x.shape[:3], 1)], -1)
    p = torch.softmax(x, -1)[..., : k.shape[2]]
    return (p @ v).transpose(1, 2), torch.logsumexp(x, -1)


@pytest.mark.parametrize("dtype", LIMIT)
def test_every_option_and_its_gradient(package, ops, dtype):
    q, k, v = inputs(dtype)
    sinks, slopes = torch.randn(4, dtype=dtype, requires_grad=True), torch.rand(4) / 10
    before = {op: ops.call_count(op) for op in ("attention", "attention_fwd", "attention_bwd")}
    out, lse, none = package.flash_attn_func(
        q, k, v, alibi_slopes=slopes, s_aux=sinks, return_attn_probs=True, **OPTIONS
    )
    assert none is None
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v, sinks)]
    want, want_lse = plain(*leaves[:3], 0.3, True, (6, 6), 3.0, slopes, leaves[3], 9)
    close(out, want)
    close(lse, want_lse, 10)  # of weights of bfloat16, exact to 1e-4 each
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    torch.autograd.backward([out, lse], [dout, dlse])
    torch.autograd.backward([want, want_lse], [dout.double(), dlse.double()])
    for got, leaf in zip((q, k, v, sinks), leaves):
        close(got.grad, leaf.grad, 4)  # the output's own rounding goes into every row's gradient
    with torch.no_grad():
        close(package.flash_attn_func(q, k, v, alibi_slopes=slopes, s_aux=sinks, **OPTIONS), want)
    assert {op: ops.call_count(op) - n for op, n in before.items()} == dict.fromkeys(before, 1)


def test_deterministic_is_an_argument_of_the_gradient(package):
    q, k, v = inputs()
    sinks, cu = torch.randn(4, requires_grad=True), torch.tensor([0, 13, 26], dtype=torch.int32)
    keys = torch.tensor([0, 17, 34], dtype=torch.int32)
    flat = [t.flatten(0, 1) for t in (q, k, v)]

    def both(**how):
        dense = package.flash_attn_func(q, k, v, causal=True, s_aux=sinks, **how)
        packed = package.flash_attn_varlen_func(*flat, cu, keys, 13, 17, causal=True, s_aux=sinks, **how)
        return torch.autograd.grad(dense.square().sum() + packed.square().sum(), (q, k, v, sinks))

    for got, want in zip(both(deterministic=True), both()):
        assert torch.equal(got, want)


def test_packed_sequences_are_those_alone(package):
    lengths_q, lengths_k = [3, 0, 9], [5, 4, 9]
    q = torch.randn(12, 4, 16, requires_grad=True)
    k, v = torch.randn(18, 2, 16, requires_grad=True), torch.randn(18, 2, 16, requires_grad=True)
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0) for n in (lengths_q, lengths_k))  # int64, as a user makes them
    out, lse, _ = package.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, torch.tensor(9), torch.tensor(9), return_attn_probs=True, **OPTIONS
    )
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    parts = [t.split(n) for t, n in ((q, lengths_q), (k, lengths_k), (v, lengths_k), (dout, lengths_q))]
    for n, (a, b, c, d) in enumerate(zip(*parts)):
        one, one_lse, _ = package.flash_attn_func(a[None], b[None], c[None], return_attn_probs=True, **OPTIONS)
        close(out.split(lengths_q)[n], one[0].detach())
        close(lse.split(lengths_q, 1)[n], one_lse[0].detach())
        for whole, part, size in zip(
            gradients, torch.autograd.grad(one, (a, b, c), d[None]), (lengths_q, lengths_k, lengths_k)
        ):
            close(whole.split(size)[n], part, 2)


def test_pages_and_lengths_of_packed_keys(package):
    q, cu_q = torch.randn(5, 4, 16), torch.tensor([0, 2, 5], dtype=torch.int32)
    k, v = torch.randn(6, 4, 2, 16), torch.randn(6, 4, 2, 16)  # pages of 4
    table, used = torch.tensor([[4, 1, -1], [0, 5, 2]], dtype=torch.int32), [7, 9]
    cu_k = torch.tensor([0, *used], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    got = package.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 3, 9, causal=True, block_table=table)
    rows = [[t[table[n].clamp(min=0)].flatten(0, 1)[: used[n]] for t in (k, v)] for n in range(2)]
    flat = [torch.cat(parts) for parts in zip(*rows)]
    close(got, package.flash_attn_varlen_func(q, *flat, cu_q, cu_k, 3, 9, causal=True))
    less = torch.tensor([3, 9], dtype=torch.int32)
    short = package.flash_attn_varlen_func(q, *flat, cu_q, cu_k, 3, 9, causal=True, seqused_k=less)
    close(short[:2], package.flash_attn_func(q[None, :2], *(t[None, :3] for t in flat), causal=True)[0])
    close(short[2:], got[2:])


@pytest.mark.parametrize("page, entries", [(None, True), (16, False), (16, True)])
@pytest.mark.parametrize("rows", [1, 3])
def test_decode_steps_are_one_forward(package, ops, page, entries, rows):
    q, k, v = (torch.randn(2, 12, heads, 16) for heads in (4, 2, 2))
    want = package.flash_attn_func(q, k, v, causal=True, window_size=(5, 5), softcap=2.0)
    if page is None:
        caches, table = [torch.full((3, 20, 2, 16), torch.nan) for _ in range(2)], {}
        where = {"cache_batch_idx": torch.tensor([2, 0])}
    else:
        caches = [torch.full((4, page, 2, 16), torch.nan) for _ in range(2)]
        where = {"page_table": torch.tensor([[3, -1], [1, -1]], dtype=torch.int32)}
        if entries:  # of a table with more rows, as flash-attention 3 has it
            table = torch.tensor([[1, -1], [-1, -1], [3, -1]], dtype=torch.int32)
            where = {"page_table": table, "cache_batch_idx": torch.tensor([2, 0], dtype=torch.int32)}
    before = ops.call_count("attention_decode")
    for at in range(0, 12, rows):
        step = slice(at, at + rows)
        got, lse = package.flash_attn_with_kvcache(
            q[:, step], *caches, k[:, step], v[:, step], cache_seqlens=at, causal=True, window_size=(5, 5), softcap=2.0,
            return_softmax_lse=True, **where
        )  # fmt: skip
        close(got, want[:, step])
        assert lse.shape == (2, 4, rows)
    assert ops.call_count("attention_decode") - before == 12 // rows


@pytest.mark.parametrize("interleaved", [True, False])
def test_decode_turns_queries_and_new_keys(package, interleaved):
    q, k, v = (torch.randn(1, 3, heads, 8) for heads in (2, 1, 1))
    angles = torch.rand(20, 3)  # 6 of 8 numbers turn
    turn = lambda x, at: torch.view_as_real(
        torch.view_as_complex(x.contiguous()) * torch.polar(torch.ones(3, 3), angles[at : at + 3])[None, :, None]
    )

    def rotated(x, at):
        first = x[..., :6]
        pairs = first.unflatten(-1, (3, 2)) if interleaved else torch.stack(first.chunk(2, -1), -1)
        turned = turn(pairs, at)
        turned = turned.flatten(-2) if interleaved else torch.cat(turned.unbind(-1), -1)
        return torch.cat([turned, x[..., 6:]], -1)

    cache = [torch.randn(1, 10, 1, 8) for _ in range(2)]
    want = package.flash_attn_with_kvcache(
        rotated(q, 4), *[t.clone() for t in cache], rotated(k, 4), v, cache_seqlens=4, causal=True
    )
    got = package.flash_attn_with_kvcache(
        q, *cache, k, v, angles.cos(), angles.sin(), 4, causal=True, rotary_interleaved=interleaved
    )
    close(got, want, 5)


@pytest.mark.parametrize("padded", [("cuda",), ("cuda", "cpu")])
def test_heads_of_no_multiple_of_8(package, monkeypatch, padded):
    """A GPU's kernels get them with zeros behind; so does the CPU here."""
    monkeypatch.setattr(sys.modules[package.flash_attn_func.__module__], "MULTIPLES_OF_8", padded)
    made = lambda *size: torch.randn(*size, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = made(2, 13, 4, 59), made(2, 17, 2, 59), made(2, 17, 2, 37)
    out, (want, _) = package.flash_attn_func(q, k, v, causal=True), plain(q, k, v, causal=True)
    close(out, want)
    dout = torch.randn_like(out)
    for got, wanted in zip(torch.autograd.grad(out, (q, k, v), dout), torch.autograd.grad(want, (q, k, v), dout.double())):
        close(got, wanted, 2)
    cu_q, cu_k = (torch.arange(3, dtype=torch.int32) * n for n in (13, 17))
    packed = package.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), cu_q, cu_k, 13, 17, causal=True)
    close(packed, want.flatten(0, 1))
    caches = [torch.zeros(2, 32, 2, n, dtype=torch.bfloat16) for n in (59, 37)]
    for cache, t in zip(caches, (k, v)):
        cache[:, :16] = t.detach()[:, :16]
    lengths = torch.full((2,), 16, dtype=torch.int32)
    out = package.flash_attn_with_kvcache(q[:, -1:], *caches, k[:, 16:], v[:, 16:], cache_seqlens=lengths, causal=True)
    close(out, want[:, -1:])
    assert torch.equal(caches[0][:, :17], k) and torch.equal(caches[1][:, :17], v)


@pytest.mark.parametrize("dtype", LIMIT)
def test_a_sequence_has_its_bits_in_any_company(package, dtype):
    """Alone, in a batch and packed. Few queries of many keys are parted by their own number, or as num_splits says."""
    made = lambda *size: torch.randn(*size, dtype=dtype)
    if dtype == torch.float32 and made(1).is_cuda:
        pytest.skip("a GPU's attention has no float32")
    q, k, v = made(5, 40, 8, 40), made(5, 700, 2, 40), made(5, 700, 2, 40)
    together = package.flash_attn_func(q, k, v, causal=True, window_size=(300, 0))
    cu_q, cu_k = (torch.arange(6, dtype=torch.int32) * n for n in (40, 700))
    packed = package.flash_attn_varlen_func(
        *(t.flatten(0, 1) for t in (q, k, v)), cu_q, cu_k, 40, 700, causal=True, window_size=(300, 0)
    )
    assert torch.equal(packed.view_as(together), together)
    lengths = torch.tensor([2999, 17, 3000, 1400, 513], dtype=torch.int32)
    caches = [made(5, 3000, 2, 40) for _ in range(2)]
    ways = (1, 3) if q.is_cuda else (0, 1, 3)  # a GPU's blocks are shared by the sequences of a batch, unless it is told how
    decoded = {n: package.flash_attn_with_kvcache(q[:, :1], *caches, cache_seqlens=lengths, num_splits=n) for n in ways}
    for b in range(5):
        one = slice(b, b + 1)
        alone = package.flash_attn_func(q[one], k[one], v[one], causal=True, window_size=(300, 0))
        assert torch.equal(alone, together[one])
        for splits, of_all in decoded.items():
            given = q[one, :1], *(t[one] for t in caches)
            alone = package.flash_attn_with_kvcache(*given, cache_seqlens=lengths[one], num_splits=splits)
            assert torch.equal(alone, of_all[one]), splits


def test_packed_forms(package):
    qkv = torch.randn(2, 7, 3, 2, 8)
    want = package.flash_attn_func(*qkv.unbind(2), causal=True)
    assert torch.equal(package.flash_attn_qkvpacked_func(qkv, causal=True), want)
    assert torch.equal(package.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), want)
    cu = torch.tensor([0, 7, 14], dtype=torch.int32)
    flat = qkv.flatten(0, 1)
    close(package.flash_attn_varlen_qkvpacked_func(flat, cu, 7, causal=True), want.flatten(0, 1))
    close(
        package.flash_attn_varlen_kvpacked_func(flat[:, 0], flat[:, 1:], cu, cu, 7, 7, causal=True), want.flatten(0, 1)
    )


def test_dropout_is_torchs(package, ops):
    q, k, v = inputs(rows=20, keys=20)
    before = ops.call_count("attention_fwd")
    torch.manual_seed(3)
    got = package.flash_attn_func(q, k, v, 0.5, causal=True, window_size=(4, 4))
    i, j = torch.arange(20)[:, None], torch.arange(20)
    seen = (j <= i) & (j >= i - 4)
    torch.manual_seed(3)
    want = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), seen, 0.5, enable_gqa=True)
    assert torch.equal(got, want.transpose(1, 2)) and ops.call_count("attention_fwd") == before
    # packed, with next to no dropout: what the op gives
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    cu, options = torch.tensor([0, 13, 40], dtype=torch.int32), dict(causal=True, attention_chunk=5)
    near = package.flash_attn_varlen_func(*flat, cu, cu, 27, 27, 1e-12, **options)
    close(near, package.flash_attn_varlen_func(*flat, cu, cu, 27, 27, **options).detach(), 5)
    with pytest.raises(NotImplementedError, match="dropout_p=0 with s_aux and softcap"):
        package.flash_attn_func(q, k, v, 0.1, softcap=2.0, s_aux=torch.zeros(4))


def test_padding_and_back(package):
    x, mask = torch.randn(3, 6, 2, 4), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0] * 6])
    tokens, indices, cu, longest, used = package.bert_padding.unpad_input(x, mask)
    assert (cu.tolist(), longest, used.tolist()) == ([0, 4, 10, 10], 6, [4, 6, 0])
    assert torch.equal(package.bert_padding.pad_input(tokens, indices, 3, 6), x * mask[..., None, None])


def test_arguments_are_spelt_out(package):
    """transformers looks at the names, and drops in silence what is none of them."""
    for function, names in (
        (package.flash_attn_varlen_func, "dropout_p window_size deterministic softcap s_aux max_seqlen_q block_table"),
        (package.flash_attn_with_kvcache, "block_table page_table cache_seqlens s_aux window_size softcap"),
    ):
        parameters = inspect.signature(function).parameters
        assert set(names.split()) <= set(parameters)
        assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_opcheck(ops):
    q, k, v = inputs()
    options = (torch.randn(4, requires_grad=True), None, 0.3, True, 6, -1, 0, 2.0)
    cu_q, cu_k = torch.tensor([0, 5, 13], dtype=torch.int32), torch.tensor([0, 9, 17], dtype=torch.int32)
    packed = [t.detach()[0].requires_grad_() for t in (q, k, v)]
    sequences = (cu_q, cu_k, None, 13, 17)
    plain_options = (options[0].detach(), *options[1:])
    trained = [t.detach() for t in ops.attention_fwd(q, k, v, *options)]
    detached = [t.detach() for t in (q, k, v)]
    for op, args in (
        (ops.attention, (q, k, v, *options)),
        (ops.attention_fwd, (q, k, v, *options)),
        (ops.attention_varlen, (*packed, *sequences, *options)),
        (ops.attention_varlen_fwd, (*packed, *sequences, *options)),
        (ops.attention_bwd, (trained[0], *detached, *trained, None, *plain_options, True)),
        (ops.attention_decode, (*detached, None, None, torch.tensor([3, 17], dtype=torch.int32), None, None,
                                *plain_options, 0)),
    ):  # fmt: skip
        torch.library.opcheck(op.default, args)


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_graph(package, deterministic):
    q, k, v = inputs()

    def step(q, k, v):
        out = package.flash_attn_func(q, k, v, causal=True, window_size=(4, 0), deterministic=deterministic)
        return out.square().sum()

    want = torch.autograd.grad(step(q, k, v), (q, k, v))
    got = torch.autograd.grad(torch.compile(step, backend="aot_eager", fullgraph=True)(q, k, v), (q, k, v))
    for a, b in zip(got, want):
        assert torch.equal(a, b)
