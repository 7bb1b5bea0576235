"""This package on a GPU: what tests of all packages need of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"dyt_(forward|backward)<.*BFloat16, 8>"


def cases(ops, random, names):
    x, dy, odd = random(333, 2048), random(333, 2048), random(65, 577)
    alpha, gamma, beta, odd_gamma = random(1), random(2048), random(2048), random(577)
    return {
        "dyt": lambda: ops.dyt(x, alpha, gamma, beta),
        "dyt, odd, no beta": lambda: ops.dyt(odd, alpha, odd_gamma, None),
        "dyt_bwd": lambda: ops.dyt_bwd(dy, x, alpha, gamma),
        "dyt_bwd, odd": lambda: ops.dyt_bwd(odd, odd, alpha, odd_gamma),
    }


def large(ops, x, random):
    alpha, gamma = random(1), random(x.shape[1])
    return {"dyt": (x, lambda t: ops.dyt(t, alpha, gamma, gamma))}
