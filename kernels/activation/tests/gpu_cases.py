"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"unary_rows<.*Silu, .*BFloat16, false, 8>"
WIDER = True


def cases(ops, random, names):
    x, dy = random(333, 2048), random(333, 2048)

    def case(name):
        op = getattr(ops, name)
        half = dy[:, :1024] if "_and_mul" in name else dy
        return (lambda: op(half, x)) if name.endswith("_bwd") else lambda: op(x)

    return {name: case(name) for name in names}


def large(ops, x, random):
    return {"silu": (x, ops.silu), "silu_and_mul": (x, ops.silu_and_mul)}
