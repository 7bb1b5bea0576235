"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

import torch

WIDE = r"group_(forward|backward)<.*BFloat16|layer_forward_held<.*BFloat16, 4, 128, true>|rms_backward_ring<.*BFloat16, 2, false, 4, true>"

LLAMA = (1e-6, 0.0, "llama")


def cases(ops, random, names):
    x, r, dy, w = random(333, 2048), random(333, 2048), random(333, 2048), random(2048)
    odd, odd_w = random(65, 577), random(577)
    rstd, odd_rstd = ops.rms_norm_fwd(x, w, *LLAMA)[1], ops.rms_norm_fwd(odd, odd_w, *LLAMA)[1]
    mean, layer_rstd = ops.layer_norm_fwd(x, w, w, 1e-6)[1:]
    return (group_norms(ops, random) if "group_norm" in names else {}) | {
        "rms_norm": lambda: ops.rms_norm(x, w, *LLAMA),
        "rms_norm_fwd": lambda: ops.rms_norm_fwd(x, w, *LLAMA),
        "rms_norm_bwd": lambda: ops.rms_norm_bwd(dy, x, w, rstd, 0.0, "llama"),
        "rms_norm_bwd, odd": lambda: ops.rms_norm_bwd(odd, odd, odd_w, odd_rstd, 0.0, "llama"),
        "add_rms_norm": lambda: ops.add_rms_norm(x, r, w, *LLAMA),
        "add_rms_norm_fwd": lambda: ops.add_rms_norm_fwd(x, r, w, 1e-6, 0.0, "gemma"),
        "add_rms_norm_bwd": lambda: ops.add_rms_norm_bwd(dy, r, x, w, rstd, 0.0, "llama"),
        "layer_norm": lambda: ops.layer_norm(x, w, w, 1e-6),
        "layer_norm_fwd": lambda: ops.layer_norm_fwd(x, w, w, 1e-6),
        "layer_norm_bwd": lambda: ops.layer_norm_bwd(dy, x, w, mean, layer_rstd),
    }


def group_norms(ops, random):  # GPUs alone have them
    w = random(64)
    first, last = random(3, 64, 1600), random(3, 64, 40, 40).contiguous(memory_format=torch.channels_last)
    long = random(2, 64, 4096)  # a group is a cluster's
    wide = random(2, 64, 64, 64).contiguous(memory_format=torch.channels_last)  # the same, four groups in a row
    saved = {t: ops.group_norm_fwd(t, w, w, groups, 1e-6)[1:] for t, groups in ((first, 8), (last, 8), (long, 2), (wide, 8))}
    return {
        "group_norm_fits": lambda: None if ops.group_norm_fits(first, 8) else w,
        "group_norm": lambda: ops.group_norm(first, w, w, 8, 1e-6),
        "group_norm, channels last": lambda: ops.group_norm(last, w, None, 8, 1e-6),
        "group_norm_fwd": lambda: ops.group_norm_fwd(long, w, w, 2, 1e-6),
        "group_norm_bwd": lambda: ops.group_norm_bwd(first, first, w, *saved[first], 8),
        "group_norm_bwd, channels last": lambda: ops.group_norm_bwd(last, last, w, *saved[last], 8),
        "group_norm, channels last, long": lambda: ops.group_norm(wide, w, w, 8, 1e-6),
        "group_norm_bwd, channels last, long": lambda: ops.group_norm_bwd(wide, wide, w, *saved[wide], 8),
        "group_norm_bwd, long": lambda: ops.group_norm_bwd(long, long, w, *saved[long], 2),
    }


def large(ops, x, random):
    w = random(x.shape[1])
    return {
        "rms_norm": (x, lambda t: ops.rms_norm(t, w, *LLAMA)),
        "layer_norm": (x, lambda t: ops.layer_norm(t, w, w, 1e-6)),
    }
