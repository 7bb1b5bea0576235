"""What the GPU benchmarks share: time by CUDA events, the copy that everything is measured against, packages, CSV."""

import json
import statistics
import time
from pathlib import Path

import torch


def load_packages(folder: Path) -> dict:
    """name -> its ops, of every package with CUDA kernels; without Python's `kernels`."""
    loaded = {}
    for metadata in sorted(folder.glob("*/build/*-cu*/metadata.json")):
        package_id = json.loads(metadata.read_text())["id"]
        torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
        loaded[metadata.parents[2].name] = getattr(torch.ops, package_id)
    if not loaded:
        raise SystemExit(f"wanted packages with CUDA kernels in {folder}; got none; build with ./x --cuda build")
    return loaded


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = got.detach().double(), want.detach().double()
    return ((got - want).norm() / want.norm()).item()


def peer_memory(call, leaves=()) -> int:
    """Bytes that a call needs at most over what is there before it, its leaves without gradients."""
    call(0)
    for leaf in leaves:
        leaf.grad = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call(0)
    return torch.cuda.max_memory_allocated() - before


class Timer:
    """Times functions of the index of a set of inputs: call after call, and each after a write that fills L2 with other
    lines (`cleared`), as Triton's do_bench and benchmarks made with it do."""

    ROUNDS = 5

    def __init__(self, sets: int):
        self.sets, self.copies = sets, {}
        self.l2 = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def microseconds(self, call) -> float:
        return self.in_turns({"": call})[""][0]

    def in_turns(self, calls: dict) -> dict:
        """name -> (microseconds, cleared microseconds): medians over rounds in which all of them take turns."""
        counts = {}
        for name, call in calls.items():
            for i in range(3):
                call(i % self.sets)
            counts[name] = int(min(max(20e3 / max(self._mean(call, 2), 1.0), 4), 400))
        found = {name: ([], []) for name in calls}
        for _ in range(self.ROUNDS):
            for name, call in calls.items():
                found[name][0].append(self._mean(call, counts[name]))
                found[name][1].append(self._cleared(call, max(counts[name] // 5, 3)))
        return {name: tuple(statistics.median(part) for part in both) for name, both in found.items()}

    def _cleared(self, call, count: int) -> float:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for i, (begin, end) in enumerate(marks):
            self.l2.zero_()
            begin.record()
            call(i % self.sets)
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in marks) * 1e3

    def _mean(self, call, count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(count):
            call(i % self.sets)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / count

    def copy_us(self, moved: int) -> tuple[float, float]:
        """`moved` bytes read and written by torch's copy, half of them each; back to back, and cleared."""
        if moved not in self.copies:
            source = [torch.randint(0, 256, (moved // 2,), dtype=torch.uint8, device="cuda") for _ in range(self.sets)]
            target = [torch.empty_like(t) for t in source]
            self.copies[moved] = self.in_turns({"": lambda i: target[i].copy_(source[i])})[""]
        return self.copies[moved]

    def host_microseconds(self, call) -> float:
        for _ in range(200):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(2000):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / 2000 * 1e6
