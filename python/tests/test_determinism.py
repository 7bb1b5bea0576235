"""docs/determinism.md: the same bits run after run, with one thread and two, and a row's or sequence's alone and in company. On a GPU
with HOTSWAP_TEST_DEVICE=cuda, where threads are no question."""

import pytest
import torch

import hotswap
from hotswap import load

DTYPES = (torch.float32, torch.bfloat16)


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
    "silu": (lambda x: load("activation").silu(x), (draw(37, 64),)),
    "swiglu": (lambda a, b: hotswap.liger_swiglu(a, b), (draw(37, 64), draw(37, 64, seed=1))),
    "rotary": (
        lambda q: hotswap.liger_rope(q, q, draw(1, 9, 8).cos().to(q.dtype), draw(1, 9, 8).sin().to(q.dtype))[0], (draw(5, 2, 9, 8),)
    ),
    "cross_entropy of each row": (per_row_loss, (draw(37, 1000), torch.arange(37) * 13)),
    "softmax": (lambda x: hotswap.liger_softmax(x), (draw(37, 1000),)),
    "sparsemax": (lambda x: hotswap.liger_sparsemax(x), (draw(37, 333),)),
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
    "deformable_attention": (
        points, (draw(5, 30, 2, 8), 0.5 + draw(5, 3, 2, 2, 3, 2, seed=1) / 4, draw(5, 3, 2, 2, 3, seed=2).softmax(-1))
    ),
}  # fmt: skip


def made(name, dtype):
    function, inputs = CASES[name]
    return function, tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)


def outputs(function, inputs) -> list:
    """The value, and the gradients of the inputs."""
    inputs = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
    torch.manual_seed(0)
    value = function(*inputs)
    wanted = [t for t in inputs if t.requires_grad]
    return [value.detach(), *torch.autograd.grad(value, wanted, torch.ones_like(value))]


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_run_to_run_and_with_any_number_of_threads(name, dtype):
    function, inputs = made(name, dtype)
    first, before = outputs(function, inputs), torch.get_num_threads()
    try:
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            assert same(outputs(function, inputs), first), threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_alone_and_in_company(name, dtype):
    """The first row or sequence by itself, and among the others."""
    function, inputs = made(name, dtype)
    torch.manual_seed(0)
    with torch.no_grad():
        whole = function(*inputs)
        torch.manual_seed(0)
        alone = function(*cut(inputs, 1))
    assert torch.equal(whole[:1], alone)


def test_linear_run_to_run():
    """Not in company: from some rows on the product is torch's own."""
    for rows in (1, 16, 64):
        x = draw(rows, 64)
        torch.manual_seed(0)
        first = linear(x)
        torch.manual_seed(0)
        assert torch.equal(linear(x), first)


def test_flag_of_torch():
    """torch.use_deterministic_algorithms(True) raises for none of these ops, and picks attention's ordered backward."""
    torch.use_deterministic_algorithms(True)
    try:
        for name in CASES:
            function, inputs = made(name, torch.float32)
            assert same(outputs(function, inputs), outputs(function, inputs)), name
    finally:
        torch.use_deterministic_algorithms(False)
