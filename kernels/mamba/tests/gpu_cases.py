"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

# What has moved 16 bytes at a time by width 4's design; backward along channels takes 8 (cuda/conv_channels.cuh).
WIDE = r"forward_(steps|channels)<.*BFloat16, 4, false>|backward_steps<.*BFloat16, 4, false>"

CPU_ONLY = (
    "selective_scan",
    "selective_scan_fwd",
    "selective_scan_bwd",
    "selective_state_update",
    "ssd",
    "ssd_fwd",
    "ssd_bwd",
    "gated_rms_norm",
    "gated_rms_norm_fwd",
    "gated_rms_norm_bwd",
)


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


def cases(ops, random, names):
    return conv_cases(ops, random)


def large(ops, x, random):
    w = random(1, 4)

    def conv(t):  # each row a sequence of one channel
        return ops.causal_conv1d(t.unsqueeze(1), w, None, None, None, "silu").squeeze(1)

    return {"causal_conv1d": (x, conv)}
