"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

# Width 4 of the convolution, 16 states of the scan. The convolution's backward along channels takes 8 bytes
# (cuda/conv_channels.cuh).
WIDE = (
    r"forward_(steps|long_steps|channels)<.*BFloat16, 4, false>|backward_steps<.*BFloat16, 4, false>"
    r"|forward_four_(steps|channels)<.*BFloat16|backward_four_steps<.*BFloat16"
    r"|scan::gpu::(forward|backward)<kernels::BFloat16.*false, false>|step_rows<(float|kernels::BFloat16)"
    r"|gated_norm::gpu::(forward|backward)_held<kernels::BFloat16"
    r"|walk_forward<|walk_states<kernels::BFloat16, true>|write_outputs<kernels::BFloat16, true, false>"
)
# What takes numbers one by one, of any layout, with B and C constant or not. The scan's backward loads 32 words again in a
# chunk of 7000 instructions. Mamba-2's gradients have 128 registers a thread,
# so that there are 16 warps; with more than 128 states twice the sums. The gated norm's longest rows have 64: two blocks of 512.
SPILLS = {
    r"gated_norm::gpu::forward_held<kernels::(BFloat16|Half), 4, 512": 8,
    r"scan::gpu::backward<void": 256, r"scan::gpu::backward<": 128,
    r"write_gradients<kernels::BFloat16, 256": 512, r"write_gradients<kernels::BFloat16, 128, false": 128,
    r"write_gradients<kernels::BFloat16, 128, true": 64, r"(write_outputs|walk_states)<kernels::BFloat16, false": 64,
}  # fmt: skip


def conv_cases(ops, random):
    x, dy, state = random(2, 264, 256), random(2, 264, 256), random(2, 264, 3)
    last, odd, dodd = random(2, 256, 264).transpose(1, 2), random(2, 13, 77), random(2, 13, 77)
    w, bias, wide = random(264, 4), random(264), random(13, 7)
    token, cache = random(2, 264), random(2, 264, 4)
    return {
        "causal_conv1d": lambda: ops.causal_conv1d(x, w, bias, None, None, "silu"),
        "causal_conv1d, channels last": lambda: ops.causal_conv1d(last, w, bias, state, None, "silu"),
        "causal_conv1d, odd": lambda: ops.causal_conv1d(odd, wide, None, None, None, "none"),
        "causal_conv1d_bwd": lambda: ops.causal_conv1d_bwd(dy, x, w, bias, state, None, "silu"),
        "causal_conv1d_bwd, channels last": lambda: ops.causal_conv1d_bwd(last, last, w, bias, None, None, "silu"),
        "causal_conv1d_bwd, odd": lambda: ops.causal_conv1d_bwd(dodd, odd, wide, None, None, None, "silu"),
        "causal_conv1d_update": lambda: ops.causal_conv1d_update(token, cache.clone(), w, bias, None, None, "silu"),
    }


def scan_cases(ops, random):
    u, delta, z, dy = (random(2, 136, 200).float() for _ in range(4))
    last = random(2, 200, 136).transpose(1, 2)
    a, b, c, many = -random(136, 16).float().exp(), random(2, 16, 200), random(2, 16, 200), random(2, 1, 33, 200)
    d, bias, saved = random(136).float(), random(136).float(), {}

    def inputs(t, rates, tokens):
        return t, t, rates, tokens, tokens, d, t, bias, None, None

    def backward(t, rates, tokens):
        if id(t) not in saved:
            saved[id(t)] = ops.selective_scan_fwd(*inputs(t, rates, tokens), True)[2]
        return ops.selective_scan_bwd(t, None, *inputs(t, rates, tokens), saved[id(t)], True)

    rates = -random(136, 33).float().exp()
    token, state, heads, ssm = random(3, 136), random(3, 136, 16).float(), random(3, 4, 64), random(3, 4, 64, 128)
    power = -random(4, 1, 1).float().exp().expand(4, 64, 128)
    backward(last, a, b), backward(u, rates, many)  # the states are saved outside of what is captured
    return {
        "selective_scan": lambda: ops.selective_scan(u, delta, a, b, c, d, z, bias, None, None, True),
        "selective_scan_fwd": lambda: ops.selective_scan_fwd(*inputs(last, a, b), True),
        "selective_scan_fwd, odd": lambda: ops.selective_scan_fwd(*inputs(u[:, :, 1:78], rates, many[..., 1:78]), True),
        "selective_scan_bwd": lambda: backward(last, a, b),
        "selective_scan_bwd, many states": lambda: backward(u, rates, many),
        "selective_state_update": lambda: ops.selective_state_update(
            state.clone(), token, token, a, b[0, :, :3].T, c[0, :, :3].T, d, token, bias, None, True
        ),
        "selective_state_update, heads": lambda: ops.selective_state_update(
            ssm.clone(), heads, heads, power, ssm[:, :1, 0], ssm[:, :1, 1], None, heads, None, None, True
        ),
    }


def gated_norm_cases(ops, random):
    x, z, dy, w, odd = random(70, 2048), random(70, 2048), random(70, 2048), random(2048), random(33, 77)
    rstd, odd_w = ops.gated_rms_norm_fwd(x, z, w, 1e-5, 512, False)[1], random(77)
    odd_rstd = ops.gated_rms_norm_fwd(odd, odd, odd_w, 1e-5, 77, True)[1]
    return {
        "gated_rms_norm": lambda: ops.gated_rms_norm(x, z, w, 1e-5, 2048, True),
        "gated_rms_norm_fwd": lambda: ops.gated_rms_norm_fwd(x, z, w, 1e-5, 512, False),
        "gated_rms_norm_bwd": lambda: ops.gated_rms_norm_bwd(dy, x, z, w, rstd, 512, False),
        "gated_rms_norm_bwd, odd": lambda: ops.gated_rms_norm_bwd(odd, odd, odd, odd_w, odd_rstd, 77, True),
    }


def ssd_cases(ops, random):
    x, dt, b, c = random(2, 200, 6, 64), random(2, 200, 6), random(2, 200, 2, 128), random(2, 200, 2, 128)
    odd, odd_dt, odd_b = random(1, 77, 3, 13), random(1, 77, 3), random(1, 77, 1, 33)
    a, odd_a, d, bias = -random(6).float().exp(), -random(3).float().exp(), random(6, 64).float(), random(6).float()
    settings = 256, True, 0.0, float("inf")
    inputs, odds = (x, dt, a, b, c, d, x, bias, None, None), (odd, odd_dt, odd_a, odd_b, odd_b, None, None, None, None, None)
    saved, odd_saved = (ops.ssd_fwd(*given, *settings)[2] for given in (inputs, odds))
    return {
        "ssd": lambda: ops.ssd(*inputs, *settings),
        "ssd_fwd, odd": lambda: ops.ssd_fwd(*odds, *settings),
        "ssd_bwd": lambda: ops.ssd_bwd(x, None, *inputs, saved, *settings),
        "ssd_bwd, odd": lambda: ops.ssd_bwd(odd, None, *odds, odd_saved, *settings),
    }


def cases(ops, random, names):
    return conv_cases(ops, random) | scan_cases(ops, random) | ssd_cases(ops, random) | gated_norm_cases(ops, random)


def large(ops, x, random):
    length, heads, numbers, states = 1024, 2, 64, 16
    w, bias, norm = random(1, 4), random(heads * numbers), random(x.shape[1])
    rates, wide, few = -random(heads * numbers, states).float().exp(), random(heads * numbers, 4), random(heads * numbers)
    entries = x.numel() // (length * heads * numbers)
    tokens = x.view(-1)[: entries * length * heads * numbers].view(entries, length, heads * numbers)  # channels beside each other
    b, c, group = random(1, states, length), random(1, states, length), random(1, length, 1, 64)
    settings = 256, True, 0.0, float("inf")

    def conv(t):  # each row a sequence of one channel
        return ops.causal_conv1d(t.unsqueeze(1), w, None, None, None, "silu").squeeze(1)

    def conv_bwd(t):
        return ops.causal_conv1d_bwd(t.unsqueeze(1), t.unsqueeze(1), w, None, None, None, "silu")[0].squeeze(1)

    def conv_channels(t):
        return ops.causal_conv1d(t.transpose(1, 2), wide, few, None, None, "silu")

    def conv_channels_bwd(t):
        return ops.causal_conv1d_bwd(t.transpose(1, 2), t.transpose(1, 2), wide, few, None, None, "silu")[0]

    def scanned(t):
        u = t.transpose(1, 2)
        return u, u, rates, b.expand(len(t), -1, -1), c.expand(len(t), -1, -1), None, u, bias, None, None

    def scan_bwd(t):
        saved = ops.selective_scan_fwd(*scanned(t), True)[2]
        return ops.selective_scan_bwd(t.transpose(1, 2), None, *scanned(t), saved, True)[1]

    def recurrent(t):
        v, each = t.unflatten(2, (heads, numbers)), group.expand(len(t), -1, -1, -1)
        return v, v[..., 0], rates[:heads, 0], each, each, None, None, None, None, None

    def ssd(t):  # few heads, whose chunks are beside each other, would have other bits than enough of them
        t = t if len(t) > 256 else t.repeat(64, 1, 1)
        return ops.ssd(*recurrent(t), *settings)[0][-5:]

    def ssd_bwd(t):
        saved = ops.ssd_fwd(*recurrent(t), *settings)[2]
        return ops.ssd_bwd(t.unflatten(2, (heads, numbers)), None, *recurrent(t), saved, *settings)[0]

    def norm_bwd(t):
        rstd = ops.gated_rms_norm_fwd(t, t, norm, 1e-5, t.shape[1], False)[1]
        return ops.gated_rms_norm_bwd(t, t, t, norm, rstd, t.shape[1], False)[1]

    return {
        "causal_conv1d": (x, conv), "causal_conv1d_bwd": (x, conv_bwd),
        "causal_conv1d, channels": (tokens, conv_channels), "causal_conv1d_bwd, channels": (tokens, conv_channels_bwd),
        "selective_scan": (tokens, lambda t: ops.selective_scan(*scanned(t), True)[0]), "selective_scan_bwd": (tokens, scan_bwd),
        "ssd": (tokens, ssd), "ssd_bwd": (tokens, ssd_bwd),
        "gated_rms_norm": (x, lambda t: ops.gated_rms_norm(t, t, norm, 1e-5, t.shape[1], False)), "gated_rms_norm_bwd": (x, norm_bwd),
    }  # fmt: skip
