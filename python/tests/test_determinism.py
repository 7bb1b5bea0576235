"""docs/determinism.md: the same bits run after run, with one thread and two, and a row's or sequence's alone and in company. On a GPU
with HOTSWAP_TEST_DEVICE=cuda, where threads are no question."""

import pytest
import torch
from determinism import CASES, PAGE, ROWS, batch_invariant, draw, dtypes, filled, linear, made, outputs, same

EACH = [pytest.param(name, dtype, id=f"{name}-{dtype}") for name in CASES for dtype in dtypes(name)]


@pytest.mark.parametrize("name, dtype", EACH)
def test_run_to_run_and_with_any_number_of_threads(name, dtype):
    function, inputs = made(name, dtype)
    first, before = outputs(function, inputs), torch.get_num_threads()
    try:
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            assert same(outputs(function, inputs), first), threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name, dtype", EACH)
def test_alone_and_in_company(name, dtype):
    assert batch_invariant(name, dtype)


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
    assert [a == b for a, b in zip(before, filled_in, strict=True)] == [not line.endswith("| same bits |") for line in before]
    assert {name for names in ROWS.values() for name in names} == set(CASES)
    assert filled("| op | the same: GPU |\n| rotary embedding (rotary) | not tested |")[1] == "| rotary embedding (rotary) | same bits |"
    with pytest.raises(ValueError, match="expected a row of"):
        filled("| op | the same: GPU |\n| another | not tested |")
