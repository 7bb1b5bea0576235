"""The built package through the user's door: kernels/conftest.py loads it."""

import pytest
import torch
from torch import nn

RATES = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = [(33, 7), (1,), (5, 0), (1000,)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def train(optimizer, params, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def count(ops):
    return ops.call_count("adamw_")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_torchs_adamw(package, ops, dtype):
    ours, theirs, before = parameters(dtype), parameters(dtype), count(ops)
    groups = [{"params": [0, 1]}, {"params": [2, 3], "weight_decay": 0.0}]
    rates = RATES | {"eps": 1e-4}  # 1e-8 is nothing beside a float16 state, whose squares may be 0
    build = lambda cls, params, **more: cls([g | {"params": [params[i] for i in g["params"]]} for g in groups], **rates, **more)  # noqa: E731
    train(build(package.AdamW, ours), ours, 4)
    train(build(torch.optim.AdamW, theirs, fused=True), theirs, 4)  # its other ways round each product to float16
    assert count(ops) - before == 8
    # 16 bits: torch rounds each of four updates in another order, a last bit each at most
    limit = {torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)


def test_states_go_both_ways_between_torchs_and_ours(package):
    ours, theirs = parameters(), parameters()
    first, second = package.AdamW(ours, **RATES), torch.optim.AdamW(theirs, **RATES)
    train(first, ours, 2), train(second, theirs, 2)
    first_again, second_again = package.AdamW(theirs, **RATES), torch.optim.AdamW(ours, **RATES)
    first_again.load_state_dict(second.state_dict())
    state = first.state_dict()
    for group in state["param_groups"]:  # what torch has beside
        group |= {k: v for k, v in second.state_dict()["param_groups"][0].items() if k not in group}
    second_again.load_state_dict(state)
    train(first_again, theirs, 2, 2), train(second_again, ours, 2, 2)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("states", ["parameter", "float32_master", "bfloat16_moments", "stochastic"])
def test_a_loaded_state_goes_on_to_the_bit(package, states):
    whole, half = parameters(torch.bfloat16), parameters(torch.bfloat16)
    train(package.AdamW(whole, **RATES, states=states, seed=7), whole, 4)
    first = package.AdamW(half, **RATES, states=states, seed=7)
    train(first, half, 2)
    state = {name: {k: v.dtype for k, v in s.items()} for name, s in first.state_dict()["state"].items()}
    second = package.AdamW(half, **RATES, states=states, seed=7)
    second.load_state_dict(first.state_dict())
    assert {name: {k: v.dtype for k, v in s.items()} for name, s in second.state_dict()["state"].items()} == state
    assert ("master" in state[0]) == (states in ("float32_master", "bfloat16_moments"))
    train(second, half, 2, 2)
    assert all(torch.equal(a, b) for a, b in zip(whole, half, strict=True))


def test_small_updates_of_bfloat16(package):
    for states, moves in {"parameter": False, "float32_master": True, "bfloat16_moments": True, "stochastic": True}.items():
        p = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = package.AdamW([p], lr=1e-4, weight_decay=0, states=states)
        for _ in range(40):
            p.grad = torch.ones_like(p)
            optimizer.step()
        mean = p.double().mean().item()
        assert (mean < 1) == moves, states
        assert not moves or abs(mean - (1 - 40e-4)) < 2**-8, states


def test_under_grad_scaler(package):
    p, plain = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))  # makes the scale
    optimizer, other = package.AdamW([p], **RATES), package.AdamW([plain], **RATES)
    p.grad, plain.grad = torch.full((8,), 12.0), torch.full((8,), 3.0)
    scaler.step(optimizer)
    other.step()
    assert torch.equal(p, plain)
    scaler.update()
    p.grad = torch.full((8,), torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(p, plain) and optimizer.state[p]["step"] == 1
    assert scaler.get_scale() < 4


def test_parameters_in_another_order_in_memory(package):
    data = torch.randn(4, 3, 5, 5)
    layouts = [data.clone(), data.clone().to(memory_format=torch.channels_last), data.permute(3, 1, 0, 2).clone().permute(2, 1, 3, 0)]
    made = []
    for layout in layouts:
        p = nn.Parameter(layout)
        assert p.stride() == layout.stride()
        optimizer = package.AdamW([p], **RATES)
        train(optimizer, [p], 2)
        again = package.AdamW([p], **RATES)
        again.load_state_dict(optimizer.state_dict())
        train(again, [p], 1, 2)
        made.append(p)
    assert all(torch.equal(made[0], p) for p in made[1:])


def test_closure_is_called_with_gradients(package):
    p = nn.Parameter(torch.ones(3))
    optimizer = package.AdamW([p], **RATES)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert p[0] < 1


def test_under_a_scheduler(package):
    p = nn.Parameter(torch.ones(3))
    optimizer = package.AdamW([p], **RATES)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    p.grad = torch.ones(3)
    optimizer.step()
    scheduler.step()
    assert torch.equal(p, torch.ones(3))  # the rate is 0, the decay goes by the rate


def test_opcheck(ops):
    p, g = torch.randn(4, 24), torch.randn(4, 24)
    one = lambda: [torch.ones(())]  # noqa: E731
    arguments = (torch.ones(()), [p], [g], [g * 0], [g * 0], [], one(), 1e-3, 0.9, 0.99, 1e-8, 0.0, None)
    torch.library.opcheck(ops.adamw_.default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_errors_name_what_was_wanted(package):
    p = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="states to be one of parameter, .*; got 'half'"):
        package.AdamW([p], states="half")
    with pytest.raises(ValueError, match="lr of at least 0; got -1"):
        package.AdamW([p], lr=-1)
    half = nn.Parameter(torch.ones(3, dtype=torch.float16))
    half.grad = torch.ones_like(half)
    with pytest.raises(RuntimeError, match="expected averages in the parameters' dtype"):
        package.AdamW([half], states="stochastic").step()
