"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"loss_rows<.*BFloat16, 8, false>"
GPU_ONLY = ("scale_gradient_", "add_product_")  # elsewhere the caller multiplies
# racecheck itself fails inside cuBLAS in these.
RACECHECK_FAILS = [f"LinearCrossEntropy.{name}*" for name in ("ForwardAndBackward", "Dweight", "PeakMemory")]


def _targets(rows, vocab, device):
    import torch  # not above: who gathers for another machine may have none

    generator = torch.Generator(device).manual_seed(1)
    return torch.randint(0, vocab, (rows,), generator=generator, device=device)


def cases(ops, random, names):
    z, h, head = random(100, 50257), random(300, 64), random(1000, 64)
    target, label = _targets(100, 50257, z.device), _targets(300, 1000, z.device)
    target[::7] = -100
    plain, mean = (-100, 0.0, 0.0, 0.0, "mean"), (-100, 0.1, 0.0, 1e-3, "mean")
    one = z.float().new_ones(())
    lse = ops.cross_entropy_fwd(z, target, *plain)[1]
    head_lse = ops.linear_cross_entropy_fwd(h, head, None, label, *mean)[1]

    wide, wide_head, wide_label = random(400, 256), random(1000, 256), _targets(400, 1000, z.device)

    def scaled():
        gradient = z.clone()
        ops.scale_gradient_(gradient, one * 0.7)
        return (gradient,)

    gradients = random(384, 1000)

    def summed():
        out = wide.new_full((1000, 256), float("nan"))  # written first, then added to
        ops.add_product_(out, gradients, wide[:384], False)
        ops.add_product_(out, gradients[:300], wide[:300], True)
        return (out,)

    def in_place():
        logits = z.clone()
        return logits, *ops.cross_entropy_fwd_(logits, target, *mean)

    everything = (-100, 0.1, 5.0, 1e-3, "mean")
    z_weights, weights = random(50257).abs().float(), random(1000).abs().float()
    of_a_gpu = {name: call for name, call in (("scale_gradient_", scaled), ("add_product_", summed)) if name in names}
    return of_a_gpu | {
        "cross_entropy": lambda: ops.cross_entropy(z, target, *mean),
        "cross_entropy_fwd": lambda: ops.cross_entropy_fwd(z, target, *mean),
        "cross_entropy_fwd, every option": lambda: ops.cross_entropy_fwd(z, target, *everything, z_weights, True),
        "cross_entropy_fwd_": in_place,
        "cross_entropy_fwd_bwd": lambda: ops.cross_entropy_fwd_bwd(z, target, *mean),
        "cross_entropy_bwd": lambda: ops.cross_entropy_bwd(one, z, target, lse, *plain),
        "linear_cross_entropy": lambda: ops.linear_cross_entropy(h, head, None, label, *mean),
        "linear_cross_entropy_fwd": lambda: ops.linear_cross_entropy_fwd(h, head, None, label, *mean),
        "linear_cross_entropy_fwd, float32 dweight": lambda: ops.linear_cross_entropy_fwd(h, head, None, label, *mean, True),
        # 128 rows at a time; the first 256 of 400 in dweight's own memory.
        "linear_cross_entropy_fwd, small chunks": lambda: ops.linear_cross_entropy_fwd(
            wide, wide_head, None, wide_label, *mean, False, 1
        ),
        "linear_cross_entropy_fwd, every option": lambda: ops.linear_cross_entropy_fwd(
            wide, wide_head, None, wide_label, *everything, False, 1, weights, True, True
        ),
        "linear_cross_entropy_fwd, class weights and predictions": lambda: ops.linear_cross_entropy_fwd(
            wide, wide_head, None, wide_label, *plain, False, 1, weights, False, True
        ),
        "linear_cross_entropy_bwd": lambda: ops.linear_cross_entropy_bwd(one, h, head, None, label, head_lse, *mean),
    }


def large(ops, x, random):
    rows, vocab = 16448, 131072
    z, target = x.view(-1)[: rows * vocab].view(rows, vocab), _targets(rows, vocab, x.device)
    options = (-100, 0.0, 0.0, 0.0, "none")
    return {"cross_entropy_fwd": (z, lambda t: ops.cross_entropy_fwd(t, target[-len(t) :], *options)[0])}
