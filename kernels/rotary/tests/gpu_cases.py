"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"rotate_vectors<.*BFloat16, .*BFloat16, false>"


def cases(ops, random, names):
    q, k = random(2, 8, 65, 128), random(2, 2, 65, 128)
    cos, sin = random(1, 65, 128), random(1, 65, 128)

    def in_place():
        both = q.clone(), k.clone()
        ops.rotary_(*both, cos, sin, 128, False)
        return both

    return {
        "rotary": lambda: ops.rotary(q, k, cos, sin, 128, False),
        "rotary_": in_place,
        "rotary_bwd, interleaved": lambda: ops.rotary_bwd(q, k, cos, sin, 128, True),
    }


def large(ops, x, random):
    return {}
