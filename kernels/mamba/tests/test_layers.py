"""The seven layers through the user's door, and the mixers that they are made of."""

import math
import sys
from pathlib import Path

import pytest
import torch
from kernels.layer.layer import _validate_layer
from torch.nn import functional as F
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

sys.path.insert(0, str(Path(__file__).parent))
import mamba_oracle as oracle  # noqa: E402
from mamba_oracle import gradients, leaf, near, ssd_inputs, wide  # noqa: E402

LAYERS = {
    "causal_conv1d_fn": modeling_lfm2.causal_conv1d_fn,
    "causal_conv1d_update": modeling_mamba.causal_conv1d_update,
    "selective_scan_fn": modeling_mamba.mamba_selective_scan,
    "selective_state_update": modeling_mamba2.mamba2_selective_state_update,
    "mamba_inner_fn": modeling_mamba.mamba_inner_fn,
    "mamba_chunk_scan_combined": modeling_mamba2.mamba2_chunk_scan,
    "mamba_split_conv1d_scan_combined": modeling_mamba2.mamba2_split_conv1d_scan_combined,
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Counted:
    """with Counted(ops, "ssd") as c: ...; c.calls"""

    def __init__(self, ops, *names):
        self.ops, self.names = ops, names

    def __enter__(self):
        self.before = [self.ops.call_count(name) for name in self.names]
        return self

    def __exit__(self, *_):
        self.calls = [self.ops.call_count(name) - n for name, n in zip(self.names, self.before)]


@pytest.mark.parametrize("name", LAYERS)
def test_kernels_takes_it_for_transformers_function(package, name):
    layer, stock = getattr(package.layers, name), LAYERS[name]
    assert type(stock).kernel_layer_name == name
    _validate_layer(check_cls=type(stock), cls=layer, repo="mamba")
    assert layer.can_torch_compile and layer.has_backward


def test_keywords_that_nothing_is_made_of_are_errors(package):
    layer = package.layers.causal_conv1d_fn()
    x, weight = torch.randn(1, 8, 6), torch.randn(8, 4)
    want = layer(x, weight)
    assert torch.equal(layer(x, weight, position_ids=torch.arange(6)[None], use_cache=True, window=None), want)
    with pytest.raises(TypeError, match=r"causal_conv1d_fn: expected seq_idx or cu_seq_lens_q; got dilation, window too"):
        layer(x, weight, window=3, dilation=2)
    with pytest.raises(ValueError, match=r"expected activation None, \"silu\" or \"swish\"; got 'gelu'"):
        layer(x, weight, activation="gelu")


def test_conv_of_packed_sequences(package):
    layer = package.layers.causal_conv1d_fn()
    x, weight = torch.randn(1, 8, 20), torch.randn(8, 4)
    ends = torch.tensor([0, 7, 8, 20])
    want = torch.cat([layer(x[..., a:b], weight) for a, b in zip(ends[:-1], ends[1:])], -1)
    seq_idx = torch.repeat_interleave(torch.arange(3), ends.diff())[None].int()
    assert torch.equal(layer(x, weight, seq_idx=seq_idx), want)
    assert torch.equal(layer(x, weight, cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=12), want)
    # columns of a cache in front of the tokens belong to the first one's sequence
    longer = layer(torch.cat([x[..., :4], x], -1), weight, seq_idx=seq_idx)[..., 4:]
    first = layer(torch.cat([x[..., :4], x[..., :7]], -1), weight)[..., 4:]
    assert torch.equal(longer, torch.cat([first, want[..., 7:]], -1))


def test_scan_gives_the_last_state_where_it_is_asked_for(package):
    u, delta, A = torch.randn(2, 6, 9), torch.randn(2, 6, 9), -torch.rand(6, 4)
    B, C = torch.randn(2, 4, 9), torch.randn(2, 4, 9)
    layer = package.layers.selective_scan_fn()
    y, last = layer(u, delta, A, B, C, delta_softplus=True, return_last_state=True, use_mambapy=True)
    assert torch.equal(layer(u, delta, A, B, C, delta_softplus=True), y)
    near(last, oracle.scan(*wide((u, delta, A, B, C)), delta_softplus=True)[1], (1e-5, 1e-5))


def test_chunk_scan_takes_a_gate(package):
    x, dt, A, B, C, D, z, bias, _ = ssd_inputs()
    layer = package.layers.mamba_chunk_scan_combined()
    got = layer(x, dt, A, B, C, 64, D, bias, dt_softplus=True, z=z)
    near(got, layer(x, dt, A, B, C, 64, D, bias, dt_softplus=True, z=None) * F.silu(z), (1e-5, 1e-5))


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_norm_in_place_of_the_stock_one(package, ops, dtype, limit):
    stock = modeling_mamba2.MambaRMSNormGated(24).to(dtype)
    torch.nn.init.normal_(stock.weight)
    x, gate = torch.randn(2, 5, 24).to(dtype), torch.randn(2, 5, 48)[..., :24].to(dtype)
    with Counted(ops, "gated_rms_norm", "gated_rms_norm_fwd") as counted:
        got = package.layers.MambaRMSNormGated.forward(stock, x, gate)
        with torch.no_grad():
            assert torch.equal(package.layers.MambaRMSNormGated.forward(stock, x, gate), got)
    assert counted.calls == [1, 1] and got.dtype == dtype
    want = stock(x, gate)
    assert (got - want).norm() <= limit * want.norm()
    near(package.layers.MambaRMSNormGated.forward(stock, x), stock(x), (limit, limit))


# ---- mixers -----------------------------------------------------------------------------------------------------------


def inner_inputs(dtype=torch.float32, channels=12, states=4, rank=3, length=9, hidden=10, norms=False):
    xz = leaf(2, length, 2 * channels, dtype=dtype).transpose(1, 2)
    weights = leaf(channels, 1, 4, dtype=dtype), leaf(channels, dtype=dtype), leaf(rank + 2 * states, channels, dtype=dtype, scale=0.3)
    more = leaf(channels, rank, dtype=dtype), leaf(hidden, channels, dtype=dtype, scale=0.3), leaf(hidden)
    A, D, bias = (-torch.rand(channels, states) - 0.1).requires_grad_(), leaf(channels), leaf(channels)
    return [xz.detach().requires_grad_(), *weights, *more, A, D, bias] + [leaf(n) if norms else None for n in (states, states, rank)]


def inner(mixer, given, eps=1e-5):
    xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, D, bias, *norms = given
    more = dict(zip(("b_rms_weight", "c_rms_weight", "dt_rms_weight"), norms)) | dict(b_c_dt_rms_eps=eps)
    return mixer(xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, None, None, D, bias, delta_softplus=True, **more)


def slow_inner(
    xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, B, C, D, bias, delta_softplus, b_rms_weight, c_rms_weight,
    dt_rms_weight, b_c_dt_rms_eps
):  # fmt: skip
    """transformers' slow path, Falcon Mamba's norms where its forward has them: in front of dt_proj."""
    norm = lambda t, w: t if w is None else F.rms_norm(t, t.shape[-1:], None, b_c_dt_rms_eps) * w
    x, z = xz.chunk(2, 1)
    u = oracle.conv(x, conv_w.squeeze(1), conv_b, activation="silu")
    states = A.shape[1]
    dt, B, C = (u.transpose(1, 2) @ x_proj.T).split([dt_proj.shape[1], states, states], -1)
    dt, B, C = norm(dt, dt_rms_weight), norm(B, b_rms_weight), norm(C, c_rms_weight)
    y, _ = oracle.scan(u, dt_proj @ dt.transpose(1, 2), A, B.transpose(1, 2), C.transpose(1, 2), D, z, bias, True)
    return F.linear(y.transpose(1, 2), out_w, out_b)


INNER = ("causal_conv1d", "causal_conv1d_bwd", "selective_scan", "selective_scan_fwd", "selective_scan_bwd")


@pytest.mark.parametrize("norms", [False, True])
def test_inner(package, ops, norms):
    given = inner_inputs(norms=norms)
    exact = wide(given)
    with Counted(ops, *INNER) as counted:
        y = inner(package.layers.mamba_inner_fn(), given)
        got = gradients([y], given)
    assert counted.calls == [2, 1, 0, 1, 1]  # the convolution again in backward, the scan not
    want = inner(slow_inner, exact)
    near(y, want, (1e-5, 1e-5))
    for g, w in zip(got, gradients([want], exact), strict=True):
        near(g, w, (1e-4, 1e-4))
    with torch.no_grad():
        assert torch.equal(inner(package.mamba_inner_fn, given), y)


def test_inner_in_short_numbers(package):
    given = inner_inputs(torch.bfloat16, norms=True)
    exact = wide(given)
    y, want = inner(package.mamba_inner_fn, given), inner(slow_inner, exact)
    assert y.dtype == torch.bfloat16
    # five roundings between the input and the output, and once more for the size of what is summed
    assert (y.double() - want).norm() <= 6 * 2**-8 * want.norm()
    # float32 weights under autocast: the projections are bfloat16, backward too
    wide_weights = [None if t is None else t.detach().float().requires_grad_() for t in given]
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        y = inner(package.mamba_inner_fn, wide_weights)
    assert y.dtype == torch.bfloat16
    assert (y.double() - want).norm() <= 6 * 2**-8 * want.norm()
    for g, w in zip(gradients([y], wide_weights), gradients([want], exact), strict=True):
        assert g.dtype == torch.float32
        assert (g.double() - w).norm() <= 12 * 2**-8 * w.norm()


def test_norm_weights_as_falcon_mamba_passes_them(package):
    """Ones, of dt as wide as dt_proj's output: they say that there is a norm. Others that wide would be another formula's."""
    *given, B_norm, C_norm, dt_norm = inner_inputs(norms=True)
    ones = [torch.ones(4), torch.ones(4)]
    want = inner(package.mamba_inner_fn, [*given, *ones, torch.ones(3)])
    assert torch.equal(inner(package.mamba_inner_fn, [*given, *ones, torch.ones(12)]), want)
    with pytest.raises(ValueError, match=r"expected dt_rms_weight \[3\], of a norm in front of dt_proj; got \[12\] to be trained"):
        inner(package.mamba_inner_fn, [*given, *ones, torch.ones(12, requires_grad=True)])


def test_inner_with_constant_B_and_C(package):
    given = inner_inputs()
    xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, D, bias = given[:10]
    B, C = leaf(12, 4), leaf(12, 4)
    y = package.mamba_inner_fn(xz, conv_w, conv_b, x_proj[:3], dt_proj, out_w, out_b, A, B, C, D, bias)
    inputs = [xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, B, C, D, bias]
    exact = wide(inputs)
    u = oracle.conv(exact[0].chunk(2, 1)[0], exact[1].squeeze(1), exact[2], activation="silu")
    delta = exact[4] @ (exact[3][:3] @ u)
    want, _ = oracle.scan(u, delta, *exact[7:11], exact[0].chunk(2, 1)[1], exact[11], True)
    want = F.linear(want.transpose(1, 2), exact[5], exact[6])
    near(y, want, (1e-5, 1e-5))
    for g, w in zip(gradients([y], inputs), gradients([want], exact), strict=True):
        near(g, w, (1e-4, 1e-4))


def test_inner_refuses_complex_numbers_by_name(package):
    xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, D, bias = inner_inputs()[:10]
    wider = torch.randn(x_proj.shape[0] + 8, x_proj.shape[1])  # two numbers for each complex one of B and C
    with pytest.raises(ValueError, match="expected A in real values; got complex"):
        package.mamba_inner_fn(xz, conv_w, conv_b, wider, dt_proj, out_w, out_b, A.to(torch.complex64), None, None, D, bias)


def kept_bytes(run):
    """Of what a forward saves for its backward, each memory once."""
    sizes = {}

    def pack(t):
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = run()
    return sum(sizes.values()), y


def test_inner_keeps_less_than_its_parts(package):
    given = inner_inputs(channels=64, length=200)
    fused, y = kept_bytes(lambda: inner(package.mamba_inner_fn, given))
    conv = lambda x, w, b, activation: package.causal_conv1d_fn(x, w, b, activation=activation)

    def parts():
        xz, conv_w, conv_b, x_proj, dt_proj, out_w, out_b, A, D, bias = given[:10]
        x, z = xz.chunk(2, 1)
        u = conv(x, conv_w.squeeze(1), conv_b, "silu")
        dt, B, C = (u.transpose(1, 2) @ x_proj.T).split([3, 4, 4], -1)
        y = package.selective_scan_fn(u, dt_proj @ dt.transpose(1, 2), A, B.transpose(1, 2), C.transpose(1, 2), D, z, bias, True)
        return F.linear(y.transpose(1, 2), out_w, out_b)

    apart, want = kept_bytes(parts)
    assert torch.equal(y, want)
    assert fused <= apart - 2 * 4 * 2 * 64 * 200  # without the convolution's result and delta


def test_inner_twice_through_a_kept_graph(package):
    given = inner_inputs()
    y = inner(package.mamba_inner_fn, given)
    first = torch.autograd.grad(y.sum(), given[:10], retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(y.sum(), given[:10])))


def split_inputs(heads=4, dim=5, groups=2, states=3, length=21, hidden=10, other=0, wide_D=False):
    inner, channels = heads * dim, heads * dim + 2 * groups * states
    zxbcdt = leaf(2, length, 2 * other + inner + channels + heads)
    D = leaf(heads, dim) if wide_D else leaf(heads)
    A = (-torch.rand(heads) - 0.1).requires_grad_()
    return [zxbcdt, leaf(channels, 4), leaf(channels), leaf(heads), A, D, leaf(inner), leaf(hidden, inner + other, scale=0.3), leaf(hidden)]


def slow_split(given, groups, dim, norm=True, before=False, other=0, state=None, seq_idx=None, limits=(0.0, math.inf)):
    zxbcdt, conv_w, conv_b, dt_bias, A, D, norm_w, out_w, out_b = given
    heads, channels = A.shape[0], conv_w.shape[0]
    inner = heads * dim
    gate, up, z, xbc, dt = zxbcdt.split([other, other, inner, channels, heads], -1)
    xbc = oracle.conv(xbc.transpose(1, 2), conv_w, conv_b, None, seq_idx, "silu").transpose(1, 2)
    x, B, C = xbc.split([inner, (channels - inner) // 2, (channels - inner) // 2], -1)
    x, B, C = x.unflatten(-1, (heads, dim)), B.unflatten(-1, (groups, -1)), C.unflatten(-1, (groups, -1))
    y, final = oracle.ssd(x, dt, A, B, C, D, None, dt_bias, state, seq_idx, True, *limits)
    y = y.flatten(-2)
    y = oracle.gated_norm(y, norm_w, z, 1e-5, inner // groups, before) if norm else y * F.silu(z)
    return F.linear(torch.cat([F.silu(gate) * up, y], -1), out_w, out_b), final


@pytest.mark.parametrize("norm, before", [(True, False), (True, True), (False, False)])
def test_split(package, ops, norm, before):
    given = split_inputs()
    exact = wide(given)
    zxbcdt, conv_w, conv_b, dt_bias, A, D, norm_w, out_w, out_b = given
    seq_idx = torch.tensor([[0] * 9 + [1] * 12] * 2, dtype=torch.int32)
    more = dict(rmsnorm_weight=norm_w if norm else None, rmsnorm_eps=1e-5, outproj_weight=out_w, outproj_bias=out_b)
    more |= dict(headdim=5, ngroups=2, norm_before_gate=before, dt_limit=(0.1, 0.9), seq_idx=seq_idx)
    with Counted(ops, "causal_conv1d", "ssd_fwd", "ssd_bwd") as counted:
        y = package.layers.mamba_split_conv1d_scan_combined()(zxbcdt, conv_w, conv_b, dt_bias, A, D, 16, **more)
        used = [t for t in given if norm or t is not norm_w]
        got = gradients([y], used)
    assert counted.calls == [2, 1, 1]
    want, _ = slow_split(exact, 2, 5, norm, before, seq_idx=seq_idx, limits=(0.1, 0.9))
    near(y, want, (1e-5, 1e-5))
    for g, w in zip(got, gradients([want], [t for t in exact if norm or t is not exact[6]]), strict=True):
        near(g, w, (1e-4, 1e-4))


def test_split_with_an_mlp_beside_it_and_states(package):
    given = split_inputs(other=6, wide_D=True)
    state = leaf(2, 4, 5, 3)
    exact = wide([*given, state])
    zxbcdt, conv_w, conv_b, dt_bias, A, D, norm_w, out_w, out_b = given
    more = dict(rmsnorm_weight=norm_w, rmsnorm_eps=1e-5, outproj_weight=out_w, outproj_bias=out_b, ngroups=2)
    got = package.mamba_split_conv1d_scan_combined(
        zxbcdt, conv_w, conv_b, dt_bias, A, D, 16, state, return_final_states=True, norm_before_gate=False, **more
    )
    want = slow_split(exact[:-1], 2, 5, other=6, state=exact[-1])
    for g, w in zip([*got, *gradients(got, [*given, state])], [*want, *gradients(want, exact)], strict=True):
        near(g, w, (1e-4, 1e-4))


# ---- torch.compile, and the same bits each time -----------------------------------------------------------------------


def mixers(package):
    given, parts = inner_inputs(norms=True), split_inputs()
    zxbcdt, conv_w, conv_b, dt_bias, A, D, norm_w, out_w, out_b = parts
    more = dict(rmsnorm_weight=norm_w, outproj_weight=out_w, outproj_bias=out_b, headdim=5, ngroups=2, norm_before_gate=False)
    inner_layer, split = package.layers.mamba_inner_fn(), package.layers.mamba_split_conv1d_scan_combined()
    x, dt, A2, B, C, D2, z, bias, state = ssd_inputs()
    chunk, scan = package.layers.mamba_chunk_scan_combined(), package.layers.selective_scan_fn()
    u, delta = leaf(2, 9, 6).transpose(1, 2), leaf(2, 6, 9)
    A1, B1, C1 = (-torch.rand(6, 4)).requires_grad_(), leaf(2, 9, 4).transpose(1, 2), leaf(2, 9, 4).transpose(1, 2)
    of_scan = [t.detach().requires_grad_() for t in (u, delta, A1, B1, C1)]
    ends = torch.tensor([0, 4, 9])
    return {
        "inner": (lambda *t: inner(inner_layer, t), given),
        "split": (lambda *t: split(*t[:6], 16, **(more | dict(rmsnorm_weight=t[6], outproj_weight=t[7], outproj_bias=t[8]))), parts),
        "scan": (lambda *t: scan(*t, delta_softplus=True, return_last_state=True), of_scan),
        "chunks": (lambda x, dt, A, B, C, D, z, b, s: chunk(x, dt, A, B, C, 16, D, b, s, True, return_final_states=True, z=z),
                   [x, dt, A2, B, C, D2, z, bias, state]),
        "conv": (lambda x, w: package.layers.causal_conv1d_fn()(x, w, None, "silu", cu_seq_lens_q=ends), [leaf(1, 6, 9), leaf(6, 4)]),
    }  # fmt: skip


def results(run, given):
    out = run(*given)
    outputs = list(out) if isinstance(out, tuple) else [out]
    return [*outputs, *gradients(outputs, given)]


@pytest.mark.parametrize("name", ["inner", "split", "scan", "chunks", "conv"])
def test_compiled_in_one_graph(package, name):
    run, given = mixers(package)[name]
    want = results(run, given)
    assert all(torch.equal(a, b) for a, b in zip(results(run, given), want, strict=True))
    torch._dynamo.reset()
    got = results(torch.compile(run, fullgraph=True, backend="aot_eager"), given)
    for g, w in zip(got, want, strict=True):
        near(g, w, (1e-6, 1e-6))
    with torch.no_grad():
        compiled, plain = (r(*given) for r in (torch.compile(run, fullgraph=True, backend="aot_eager"), run))
    assert all(torch.equal(a, b) for a, b in zip(compiled, plain))


def test_compiled_steps(package):
    conv, update = package.layers.causal_conv1d_update(), package.layers.selective_state_update()

    def step(x, conv_state, weight, state, A, B):
        x = conv(x[..., None], conv_state, weight, None, "silu")[..., 0]
        return update(state, x, x, A, B, B, dt_softplus=True)

    x, weight, A, B = torch.randn(2, 8), torch.randn(8, 4), -torch.rand(8, 3), torch.randn(2, 3)
    states = torch.randn(2, 8, 4), torch.randn(2, 8, 3)
    mine, ours = [t.clone() for t in states], [t.clone() for t in states]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        got, want = compiled(x, mine[0], weight, mine[1], A, B), step(x, ours[0], weight, ours[1], A, B)
        assert torch.equal(got, want) and all(torch.equal(a, b) for a, b in zip(mine, ours))
    assert not torch.equal(mine[1], states[1])


def test_a_step_has_no_gradient(package):
    """Though weights that want one do not stop it."""
    x, weight = leaf(2, 8), torch.randn(8, 4)
    y = package.causal_conv1d_update(x, torch.zeros(2, 8, 4), weight)
    y = package.selective_state_update(torch.zeros(2, 8, 4), y, y, -torch.rand(8, 4), y[:, :4], y[:, :4])
    with pytest.raises(RuntimeError, match="expected the gradient of a step of generation; it has none"):
        y.sum().backward()


def test_opcheck(ops):
    check = torch.library.opcheck
    x, weight = leaf(2, 9, 6).transpose(1, 2).detach().requires_grad_(), leaf(6, 4)
    check(ops.causal_conv1d.default, (x, weight, leaf(6), leaf(2, 6, 3), None, "silu"))
    check(ops.causal_conv1d_update.default, (torch.randn(2, 6), torch.randn(2, 6, 4), weight.detach(), None, None, None, "none"))
    A, B = (-torch.rand(6, 4)).requires_grad_(), leaf(2, 4, 9)
    given = (x, leaf(2, 6, 9), A, B, leaf(2, 4, 9), leaf(6), leaf(2, 6, 9), leaf(6), leaf(2, 6, 4))
    seq_idx = torch.zeros(2, 9, dtype=torch.int32)
    for op in (ops.selective_scan, ops.selective_scan_fwd):
        check(op.default, (*given, seq_idx, True))
        check(op.default, (*given[:5], None, None, None, None, None, False))
    one = torch.randn(2, 6)
    check(ops.selective_state_update.default,
          (torch.randn(2, 6, 4), one, one, A.detach(), torch.randn(2, 4), torch.randn(2, 4), None, None, None, None, True))  # fmt: skip
    given = ssd_inputs(length=70)
    for op in (ops.ssd, ops.ssd_fwd):
        check(op.default, (*given, torch.zeros(2, 70, dtype=torch.int32), 64, True, 0.0, math.inf))
        check(op.default, (*given[:5], None, None, None, None, None, 64, False, 0.1, 0.9))
