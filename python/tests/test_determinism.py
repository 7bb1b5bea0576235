"""docs/determinism.md: the same bits run after run, with one thread and two, and a row's or sequence's alone and in company. On a GPU
with HOTSWAP_TEST_DEVICE=cuda, where threads are no question."""

import importlib.util
import itertools
import re
from pathlib import Path

import pytest
import torch
from determinism import CASES, FIXED_THREADS, PAGE, ROWS, batch_invariant, draw, dtypes, filled, linear, made, outputs, promised_on_gpus, same

import hotswap
from hotswap.core.packages import package

EACH = [pytest.param(name, dtype, id=f"{name}-{dtype}") for name in CASES for dtype in dtypes(name)]


@pytest.mark.parametrize("name, dtype", EACH)
def test_run_to_run_and_with_any_number_of_threads(name, dtype):
    function, inputs = made(name, dtype)
    first, before = outputs(function, inputs), torch.get_num_threads()
    try:
        for threads in (before,) * 3 if name in FIXED_THREADS else (1, 2, 1, 2):
            torch.set_num_threads(threads)
            assert same(outputs(function, inputs), first), threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name, dtype", EACH)
def test_alone_and_in_company(name, dtype):
    if torch.get_default_device().type == "cuda" and name not in promised_on_gpus():
        pytest.skip("docs/determinism.md promises it for CPUs only")
    assert batch_invariant(name, dtype)


# Ops of these packages that no case runs: other forms of those that are run, over their inputs or with the residual as an output. That they
# give the same bits again is held for every op of every package by kernels/common/tests, on the CPU and on a GPU; packed experts' company by moe_test.
NOT_TRIED = {
    "activation": set(), "dyt": set(), "mamba": set(), "moe": {"moe_experts_bwd", "moe_experts_packed"}, "norm": {"add_rms_norm"}, "rotary": {"rotary_"},
    "probability": {"tvd_fwd", "tvd_fwd_bwd"},  # a GPU's
    "mlp": {f"{act}_bwd{form}" for act in ("swiglu", "geglu") for form in ("_", "_again_")},
    "deformable": {"deformable_attention_bwd_unordered", "deformable_attention_points", "deformable_attention_points_bwd"},
}  # fmt: skip


@pytest.mark.skipif(torch.get_default_device().type == "cuda", reason="a GPU runs other forms of some ops")
def test_every_op_of_these_packages_is_of_a_case():
    count = lambda: {(p, op): package(p).calls(op) for p in NOT_TRIED for op in package(p).ops.op_names().split()}  # noqa: E731
    before = count()
    for name in CASES:
        function, inputs = made(name, torch.float32)
        outputs(function, inputs)
        with torch.no_grad():
            function(*inputs)
    after = count()
    assert {p: {op for (of, op), n in after.items() if of == p and n == before[of, op]} for p in NOT_TRIED} == NOT_TRIED


def test_the_page_has_every_package():
    first_cells = " ".join(line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|"))
    named = re.findall(r"\w+", " ".join(re.findall(r"\(([^)]*)\)", first_cells)))
    assert {folder.name for folder in hotswap.packages_folder().iterdir()} <= set(named)


def test_packed_sequences_are_as_by_themselves():
    attention, ends = hotswap.load("attention"), [0, 7, 40, 60]
    dtype = dtypes("attention")[0]
    q, k, v = (draw(60, heads, 32, seed=heads).to(dtype) for heads in (4, 2, 2))
    packed = attention.flash_attn_varlen_func(q, k, v, *[torch.tensor(ends, dtype=torch.int32)] * 2, 33, 33, causal=True)
    for a, b in itertools.pairwise(ends):
        single = attention.flash_attn_func(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)[0]
        assert torch.get_default_device().type == "cuda" or torch.equal(packed[a:b], single), (a, b)


def gpu_cases(package_name):
    """The calls of kernels/<package>/tests/gpu_cases.py, one or more for each op; here with the CPU's tensors."""
    file = Path(__file__).resolve().parents[2] / "kernels" / package_name / "tests/gpu_cases.py"
    spec = importlib.util.spec_from_file_location(f"{package_name}_gpu_cases", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ops = package(package_name).ops
    names = sorted(set(ops.op_names().split()) - set(getattr(module, "CPU_ONLY", ())))
    torch.manual_seed(0)
    return module.cases(ops, lambda *shape: torch.randn(*shape).bfloat16(), names)


# More rows than the package's kernel takes, and gradients: torch's products, whose sums follow the number of threads on CPUs
# without instructions for bfloat16.
TORCHS_PRODUCTS = ("linear, 5 rows", "linear, 16 rows", "linear_bwd")


@pytest.mark.skipif(torch.get_default_device().type == "cuda", reason="threads are no question there")
@pytest.mark.parametrize("name", ["linear", "decode"])
def test_projections_and_whole_layers_with_any_number_of_threads(name):
    before = torch.get_num_threads()
    try:
        for op, call in gpu_cases(name).items():
            if op in TORCHS_PRODUCTS:
                continue
            found = []
            for threads in (1, 2, 1):
                torch.set_num_threads(threads)
                out = call()
                found.append([t.clone() for t in ([out] if isinstance(out, torch.Tensor) else out or [])])
            assert same(found[0], found[1]) and same(found[0], found[2]), op
    finally:
        torch.set_num_threads(before)


def test_linear_cross_entropy_run_to_run():
    """With one number of threads: its products are torch's own."""
    x, head, target = draw(37, 24).requires_grad_(), draw(97, 24, seed=1).requires_grad_(), torch.arange(37)
    runs = []
    for _ in range(3):
        loss = hotswap.liger_fused_linear_cross_entropy(x, head, target)
        runs.append([loss.detach(), *torch.autograd.grad(loss, (x, head))])
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


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
            function, inputs = made(name, dtypes(name)[0])
            assert same(outputs(function, inputs), outputs(function, inputs)), name
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_column_for_gpus():
    """The command tries every promise of the column again, and leaves what is not promised."""
    page = PAGE.read_text()
    before = [line for line in page.splitlines() if line.startswith("|")]
    filled_in = filled(page, words=lambda names: f"<{' '.join(names)}>")
    assert [a == b for a, b in zip(before, filled_in, strict=True)] == [not line.endswith(("| same bits |", "| not tested |")) for line in before]
    assert {name for names in ROWS.values() for name in names} == set(CASES)
    assert filled("| op | the same: GPU |\n| rotary embedding (rotary) | not tested |")[1] == "| rotary embedding (rotary) | same bits |"
    with pytest.raises(ValueError, match="expected a row of"):
        filled("| op | the same: GPU |\n| another | not tested |")
