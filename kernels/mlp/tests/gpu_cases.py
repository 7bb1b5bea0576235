"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

WIDE = r"gated_rows<.*Silu, .*BFloat16, .*0, 8>"
WIDER = True


def cases(ops, random, names):
    gate, up, dy = random(333, 2048), random(333, 2048), random(333, 2048)

    def in_place(op):
        both = gate.clone(), up.clone()
        op(dy, *both)
        return both

    def again(op):
        all = dy.clone(), gate.clone(), up.clone()
        op(*all)
        return all

    return {
        "swiglu": lambda: ops.swiglu(gate, up),
        "swiglu_bwd": lambda: ops.swiglu_bwd(dy, gate, up),
        "swiglu_bwd_": lambda: in_place(ops.swiglu_bwd_),
        "swiglu_bwd_again_": lambda: again(ops.swiglu_bwd_again_),
        "geglu": lambda: ops.geglu(gate, up),
        "geglu_bwd": lambda: ops.geglu_bwd(dy, gate, up),
        "geglu_bwd_": lambda: in_place(ops.geglu_bwd_),
        "geglu_bwd_again_": lambda: again(ops.geglu_bwd_again_),
    }


def large(ops, x, random):
    return {"swiglu": (x, lambda t: ops.swiglu(t, t))}
