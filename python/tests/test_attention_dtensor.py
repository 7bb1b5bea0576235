"""Attention on DTensors: heads or batch over two ranks; run by torch.distributed.run as a script itself."""

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
    module = hotswap.load("attention")
    module.register_sharding()
    whole, sinks = [Replicate()], torch.randn(4)
    dense = [torch.randn(2, 9, heads, 8) for heads in (4, 2, 2)]
    packed = [t.flatten(0, 1) for t in dense]
    cu = torch.tensor([0, 5, 18], dtype=torch.int32)
    lone = [torch.randn(2, 9, heads, 8) for heads in (4, 1, 1)]  # one key head: its queries cannot be parted
    options = dict(causal=True, window_size=(4, 0))

    def call_dense(q, k, v, s):
        return module.flash_attn_func(q, k, v, s_aux=s, **options)

    def call_packed(q, k, v, s):
        at = distribute_tensor(cu, mesh, whole) if hasattr(q, "placements") else cu
        return module.flash_attn_varlen_func(q, k, v, at, at, 18, 18, s_aux=s, **options)

    for call, inputs, at, sinks_at, kept in (
        (call_dense, dense, Shard(2), Shard(0), Shard(2)),
        (call_dense, dense, Shard(0), Replicate(), Shard(0)),
        (call_dense, dense, Shard(1), Replicate(), None),
        (call_dense, lone, Shard(2), Shard(0), None),
        (call_packed, packed, Shard(1), Shard(0), Shard(1)),
        (call_packed, packed, Shard(0), Replicate(), None),
    ):
        plain = [t.clone().requires_grad_() for t in (*inputs, sinks)]
        places = [at] * 3 + [sinks_at]
        split = [distribute_tensor(t.detach(), mesh, [p]).requires_grad_() for t, p in zip(plain, places)]
        want, got = call(*plain), call(*split)
        torch.testing.assert_close(got.full_tensor(), want)
        if kept:
            assert list(got.placements) == [kept], got.placements
        weight = torch.cos(torch.arange(want.numel()).view_as(want).float())
        (want * weight).sum().backward()
        (got * distribute_tensor(weight, mesh, got.placements)).sum().backward()
        for a, b in zip(plain, split):
            torch.testing.assert_close(b.grad.full_tensor(), a.grad, rtol=1e-5, atol=1e-5)
    print("all right")
    two_ranks.leave()


if __name__ == "__main__":
    main()
