"""Ops on DTensors: their sharding rules, on two ranks; run by torch.distributed.run as a script itself."""

from pathlib import Path

import torch
import two_ranks


def test_two_ranks():
    assert two_ranks.run(Path(__file__)).count("all right") == 2


def main():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import hotswap

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    norm, act, mlp, rotary = (hotswap.load(n) for n in ("norm", "activation", "mlp", "rotary"))
    ops = norm._ops.ops
    x, y, w = torch.randn(4, 6, 8), torch.randn(4, 6, 8), torch.rand(8)
    q, k, angle = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8), torch.rand(1, 6, 8)
    whole = [Replicate()]
    cases = []  # call, inputs, placements, and the placement of the first output that must need no gathering
    for d in (0, 1, 2):
        at = [Shard(d)]
        kept = at if d < 2 else None
        cases.append((lambda x, w: ops.rms_norm(x, w, 1e-6, 0.0, "llama"), (x, w), (at, whole), kept))
        kept = at if d == 0 else None
        cases.append((lambda x, w: ops.rms_norm_fwd(x, w, 1e-6, 0.0, "gemma")[0], (x, w), (at, whole), kept))
        both = lambda x, y, w: sum(ops.add_rms_norm_fwd(x, y, w, 1e-6, 0.0, "llama")[:2])  # the residual goes on
        cases.append((both, (x, y, w), (at, at, whole), kept))
        cases.append((act.silu, (x,), (at,), at))
        cases.append((act.silu_and_mul, (x,), (at,), at if d < 2 else None))
        cases.append((mlp.swiglu, (x, y), (at, at), at))
    for d in (0, 1):
        at = [Shard(d)]
        cos, sin = angle.cos(), angle.sin()
        call = lambda q, k, cos, sin: sum(rotary.apply_rotary(q, k, cos, sin))
        cases.append((call, (q, k, cos, sin), (at, at, whole, whole), at))
    for i, (call, inputs, placements, kept) in enumerate(cases):
        floats = 2 if len(inputs) == 4 else len(inputs)  # tables have no gradient
        plain = [t.clone().requires_grad_(j < floats) for j, t in enumerate(inputs)]
        split = [distribute_tensor(t.clone(), mesh, p).requires_grad_(j < floats) for j, (t, p) in enumerate(zip(inputs, placements))]
        want, got = call(*plain), call(*split)
        torch.testing.assert_close(got.full_tensor(), want, msg=lambda m: f"case {i}: {m}")
        if kept:
            assert list(got.placements) == kept, (i, got.placements)
        weight = torch.cos(torch.arange(want.numel()).view_as(want).float())
        (want * weight).sum().backward()
        (got * distribute_tensor(weight, mesh, got.placements)).sum().backward()
        for a, b in zip(plain[:floats], split[:floats]):
            if a.grad is None:
                continue
            torch.testing.assert_close(b.grad.full_tensor(), a.grad, rtol=1e-5, atol=1e-5, msg=lambda m: f"case {i}: {m}")
    print("all right")
    two_ranks.leave()


if __name__ == "__main__":
    main()
