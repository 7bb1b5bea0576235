"""docs/determinism.md op by op: the functions, their inputs, and the page's column for GPUs, to be pasted:

    PYTHONPATH=python HOTSWAP_PACKAGES=build/packages python python/tests/determinism.py cuda

prints the table with each "same bits" and "not tested" of the column replaced by what this GPU gives.
"""

import re
import sys
from pathlib import Path

import torch

import hotswap
from hotswap import load

PAGE = Path(__file__).resolve().parents[2] / "docs/determinism.md"
COLUMN = "the same: GPU"
# The product or the kernel of these is torch's own where it is the CPU's, so another number of threads may give other bits
FIXED_THREADS = {"group_norm"}
# The page's rows whose ops are tried here, by the first words of each
ROWS = {
    "RMSNorm, LayerNorm": ("rms_norm", "layer_norm", "add_rms_norm"),
    "GroupNorm": ("group_norm",),
    "activations": ("silu", "gelu", "gelu_new", "gelu_fast", "gelu_tanh", "gelu_quick", "relu_squared", "silu_and_mul",
                    "gelu_and_mul", "gelu_tanh_and_mul", "swiglu", "geglu"),
    "rotary embedding": ("rotary",),
    "cross-entropy": ("cross_entropy of each row",),
    "softmax, sparsemax": ("softmax", "sparsemax", "dyt"),
    "divergences": ("kl_div", "jsd", "tvd", "jsd_of_logits"),
    "attention, forward": ("attention",),
    "experts": ("moe_experts",),
    "scans, convolutions": ("selective_scan", "ssd", "causal_conv1d", "gated_rms_norm", "state_update", "conv_update"),
    "deformable attention": ("deformable_attention",),
}


def draw(*shape, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device())


def cut(values, first):
    return tuple(v[:first] if isinstance(v, torch.Tensor) else v for v in values)


def scan(x, dt, b, c):
    return load("mamba").selective_scan_fn(x, dt, -draw(x.shape[1], 4).exp(), b, c, draw(x.shape[1]), delta_softplus=True)


def experts(x, index):
    up, down = draw(4, 48, 32, seed=1).to(x.dtype), draw(4, 32, 24, seed=2).to(x.dtype)
    weights = torch.full(index.shape, 0.5, dtype=x.dtype)
    return load("moe").experts(x, index, weights, up, None, down, None, "swiglu")


def ssd(x, dt, b, c):
    a = -draw(x.shape[2]).exp()
    return load("mamba").mamba_chunk_scan_combined(x, dt, a, b, c, 8, D=draw(x.shape[2]), dt_softplus=True)


def state_update(*inputs):
    x, dt, b, c = (t.detach() for t in inputs)  # of a step of generation, which has no gradient
    state = draw(1, x.shape[1], b.shape[1]).expand(len(x), -1, -1).contiguous()
    return load("mamba").selective_state_update(state, x, dt, -draw(x.shape[1], b.shape[1]).exp(), b, c, draw(x.shape[1]), dt_softplus=True)


def conv_update(x):
    x = x.detach()
    state = draw(1, x.shape[1], 3).to(x.dtype).expand(len(x), -1, -1).contiguous()
    return load("mamba").causal_conv1d_update(x, state, draw(x.shape[1], 4).to(x.dtype), None, "silu")


def group_norm(x):
    return load("norm").group_norm(x, weight(x, 8), weight(x, 8), 2, 1e-5)


def divergence(op, *options):
    """A number a row of log-probabilities, or of probabilities."""
    return lambda x, target: getattr(load("probability").ops, op)(x, target, None, -100, *options)


def jsd_of_logits(x, target):
    """The loss of each row beside its gradient, which is written over the logits."""
    logits = x.detach().clone()
    loss = load("probability").jsd_of_logits_(logits, target, 0.3, 2.0)
    return torch.cat([logits, loss[:, None].to(x.dtype)], 1) + 0 * x.sum(-1, keepdim=True)


def per_row_loss(x, target):
    return load("loss").cross_entropy(x, target, reduction="none")


def linear(x):
    return load("linear").layers.Linear.forward(torch.nn.Linear(64, 96).to(x), x)


def weight(x, n):
    return draw(n, seed=9).to(x.dtype)


def points(value, places, weights):
    sizes = torch.tensor([(6, 4), (3, 2)])
    return load("deformable").deformable_attention(value, sizes, torch.tensor([0, 24]), places, weights)


# name -> (function of tensors whose first dimension are rows or sequences, these tensors, are float inputs cast)
CASES = {
    "rms_norm": (lambda x: hotswap.liger_rms_norm(x, weight(x, 64), 1e-6), (draw(37, 64),)),
    "layer_norm": (lambda x: hotswap.liger_layer_norm(x, weight(x, 64), weight(x, 64), 1e-6), (draw(37, 64),)),
    "add_rms_norm": (lambda x, r: hotswap.liger_fused_add_rms_norm(x, r, weight(x, 64), 1e-6)[0], (draw(37, 64), draw(37, 64, seed=1))),
    "group_norm": (group_norm, (draw(5, 8, 6, 7),)),
    **{a: (lambda x, a=a: getattr(load("activation").ops, a)(x), (draw(37, 64),))
       for a in ROWS["activations"][:-2]},
    "swiglu": (lambda a, b: hotswap.liger_swiglu(a, b), (draw(37, 64), draw(37, 64, seed=1))),
    "geglu": (lambda a, b: hotswap.liger_geglu(a, b), (draw(37, 64), draw(37, 64, seed=1))),
    "rotary": (
        lambda q: hotswap.liger_rope(q, q, draw(1, 9, 8).cos().to(q.dtype), draw(1, 9, 8).sin().to(q.dtype))[0], (draw(5, 2, 9, 8),)
    ),
    "cross_entropy of each row": (per_row_loss, (draw(37, 1000), torch.arange(37) * 13)),
    "softmax": (lambda x: hotswap.liger_softmax(x), (draw(37, 1000),)),
    "sparsemax": (lambda x: hotswap.liger_sparsemax(x), (draw(37, 333),)),
    "kl_div": (divergence("kl_div", False, 1e-10, False), (draw(37, 1000).log_softmax(-1), draw(37, 1000, seed=1).softmax(-1))),
    "jsd": (divergence("jsd", 0.3), (draw(37, 1000).log_softmax(-1), draw(37, 1000, seed=1).log_softmax(-1))),
    "tvd": (divergence("tvd", False), (draw(37, 1000).softmax(-1), draw(37, 1000, seed=1).softmax(-1))),
    "jsd_of_logits": (jsd_of_logits, (draw(37, 1000), draw(37, 1000, seed=1))),
    "dyt": (lambda x: hotswap.liger_dyt(x, weight(x, 1), weight(x, 64), weight(x, 64)), (draw(37, 64),)),
    "moe_experts": (experts, (draw(13, 32), torch.arange(26).reshape(13, 2) % 4)),
    "attention": (
        lambda q, k, v: load("attention").flash_attn_func(q, k, v, causal=True),
        (draw(5, 33, 4, 32), draw(5, 33, 2, 32, seed=1), draw(5, 33, 2, 32, seed=2)),
    ),
    "selective_scan": (scan, (draw(5, 8, 19), draw(5, 8, 19, seed=1), draw(5, 4, 19, seed=2), draw(5, 4, 19, seed=3))),
    "causal_conv1d": (
        lambda x: load("mamba").causal_conv1d_fn(x, draw(8, 4).to(x.dtype), None, activation="silu"), (draw(5, 8, 19),)
    ),
    "ssd": (ssd, (draw(5, 19, 4, 8), draw(5, 19, 4, seed=1), draw(5, 19, 2, 6, seed=2), draw(5, 19, 2, 6, seed=3))),
    "gated_rms_norm": (
        lambda x, z: load("mamba").rmsnorm_fn(x, weight(x, 64), None, z, group_size=32), (draw(37, 64), draw(37, 64, seed=1))
    ),
    "state_update": (state_update, (draw(5, 8), draw(5, 8, seed=1), draw(5, 4, seed=2), draw(5, 4, seed=3))),
    "conv_update": (conv_update, (draw(5, 8),)),
    "deformable_attention": (
        points, (draw(5, 30, 2, 8), 0.5 + draw(5, 3, 2, 2, 3, 2, seed=1) / 4, draw(5, 3, 2, 2, 3, seed=2).softmax(-1))
    ),
}  # fmt: skip


def dtypes(name: str) -> tuple:
    """A GPU's attention takes 16 bits only."""
    on_gpu = torch.get_default_device().type == "cuda"
    return (torch.float16, torch.bfloat16) if on_gpu and name == "attention" else (torch.float32, torch.bfloat16)


def made(name, dtype):
    function, inputs = CASES[name]
    inputs = [t.to(torch.get_default_device()) for t in inputs]
    return function, tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)


def outputs(function, inputs) -> list:
    """The value, and the gradients of the inputs."""
    inputs = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
    torch.manual_seed(0)
    value = function(*inputs)
    inputs_of = [t for t in inputs if t.requires_grad]
    if not value.requires_grad:  # of a step of generation
        return [value]
    found = torch.autograd.grad(value, inputs_of, torch.ones_like(value), allow_unused=True)  # a target's is none
    return [value.detach(), *(g for g in found if g is not None)]


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def batch_invariant(name, dtype) -> bool:
    """Are the first row or sequence, and the first half of them, the same bits by themselves and among the others?"""
    function, inputs = made(name, dtype)

    def run(given):
        torch.manual_seed(0)
        with torch.no_grad():
            return function(*given)

    whole = run(inputs)
    return all(torch.equal(whole[:first], run(cut(inputs, first))) for first in (1, len(inputs[0]) // 2))


def run_to_run(name, dtype) -> bool:
    function, inputs = made(name, dtype)
    return same(outputs(function, inputs), outputs(function, inputs))


# ---- the page's column ------------------------------------------------------------------------------------------------


def promised_on_gpus() -> set:
    """The cases of rows that promise the same bits there, or of which nothing is known yet."""
    cells = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in cells[0]].index(COLUMN)
    rows = {row: next(c[column].strip() for c in cells if c[1].strip().startswith(row)) for row in ROWS}
    return {name for row, names in ROWS.items() if rows[row] in ("same bits", "not tested") for name in names}


def _words(names) -> str:
    apart = [f"{name} in {dtype}".replace("torch.", "") for name in names for dtype in dtypes(name) if not batch_invariant(name, dtype)]
    again = [f"{name} in {dtype}".replace("torch.", "") for name in names for dtype in dtypes(name) if not run_to_run(name, dtype)]
    if again:
        return f"not the same run to run: {', '.join(again)}"
    return f"not {', '.join(apart)}" if apart else "same bits"


def filled(page: str, words=_words) -> list:
    """The lines of the page's table, every promise of the column tried again. ValueError for a row without cases."""
    table = [line for line in page.splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in table[0].split("|")].index(COLUMN)
    for at, line in enumerate(table):
        cells = line.split("|")
        if cells[column].strip() not in ("same bits", "not tested"):
            continue
        names = next((names for row, names in ROWS.items() if cells[1].strip().startswith(row)), None)
        if names is None:
            raise ValueError(f"expected a row of {', '.join(ROWS)}; got {cells[1].strip()!r}; add its cases to ROWS")
        cells[column] = f" {words(names)} "
        table[at] = "|".join(cells)
    return table


if __name__ == "__main__":
    torch.set_default_device(sys.argv[1])
    print("\n".join(filled(PAGE.read_text())))
