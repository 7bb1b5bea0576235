"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"layer_forward_held<.*BFloat16, 4, 128, true>|rms_backward_ring<.*BFloat16, 2, false, 4, true>"

LLAMA = (1e-6, 0.0, "llama")


def cases(ops, random, names):
    x, r, dy, w = random(333, 2048), random(333, 2048), random(333, 2048), random(2048)
    odd, odd_w = random(65, 577), random(577)
    rstd, odd_rstd = ops.rms_norm_fwd(x, w, *LLAMA)[1], ops.rms_norm_fwd(odd, odd_w, *LLAMA)[1]
    mean, layer_rstd = ops.layer_norm_fwd(x, w, w, 1e-6)[1:]
    return {
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


def large(ops, x, random):
    w = random(x.shape[1])
    return {
        "rms_norm": (x, lambda t: ops.rms_norm(t, w, *LLAMA)),
        "layer_norm": (x, lambda t: ops.layer_norm(t, w, w, 1e-6)),
    }
