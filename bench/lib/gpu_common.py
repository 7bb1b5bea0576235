"""What the GPU benchmarks share: time by CUDA events, the copy that everything is measured against, packages, peers."""

import json
import os
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path

import torch

from bench.lib.gpu_meter import Meter
from bench.lib.results import COPY, is_floor

SETS = 3  # of inputs, used in turn
PEERS = {"torch": "torch", "torch.compile": "torch", "transformers": "transformers", "Liger": "liger_kernel"}
BF16_ERROR = 8e-3


def load_packages(folder: Path) -> dict:
    """name -> its ops, of every package with CUDA kernels; without Python's `kernels`."""
    loaded = {}
    for metadata in sorted(folder.glob("*/build/*-cu*/metadata.json")):
        package_id = json.loads(metadata.read_text())["id"]
        torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
        loaded[metadata.parents[2].name] = getattr(torch.ops, package_id)
    if not loaded:
        raise SystemExit(f"expected packages with CUDA kernels in {folder}; got none; build with ./x --cuda build")
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
    lines (`cleared`), as Triton's do_bench and benchmarks made with it do. rest: seconds before each turn, in which the
    card cools down: a turn takes it about as long as do_bench does."""

    ROUNDS = 5

    def __init__(self, sets: int, rest: float = 0):
        self.sets, self.rest, self.copies = sets, rest, {}
        self.l2 = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def microseconds(self, call) -> float:
        return self.in_turns({"": call})[""][0]

    def in_turns(self, calls: dict, least: int = 4) -> dict:
        """name -> (microseconds, cleared microseconds): medians over rounds in which all of them take turns, each with `least`
        calls or more."""
        counts = {}
        for name, call in calls.items():
            for i in range(3):
                call(i % self.sets)
            counts[name] = int(min(max(20e3 / max(self._mean(call, 2), 1.0), least), 400))
        found = {name: ([], []) for name in calls}
        for _ in range(self.ROUNDS):
            for name, call in calls.items():
                torch.cuda.synchronize()
                time.sleep(self.rest)
                found[name][0].append(self._mean(call, counts[name]))
                found[name][1].append(self._cleared(call, max(counts[name] // 5, min(least, 3))))
        return {name: tuple(statistics.median(part) for part in both) for name, both in found.items()}

    def _cleared(self, call, count: int) -> float:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        if count >= 4:  # of calls of less than a millisecond
            torch.cuda._sleep(20_000_000)  # 10 ms in which the host goes ahead: whose call takes it long is measured by the GPU, too
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


def randoms(*shape, scale=1.0, grad=False):
    made = [(torch.randn(*shape, device="cuda") * scale).bfloat16() for _ in range(SETS)]
    return [t.requires_grad_(grad) for t in made]


class Cases:
    """Runs (op, shape, {peer: function of the set}, bytes, target); ours is the peer named "ours"."""

    def __init__(self, only, ops, report, rest=0, packages=None, prepare=False):
        """prepare: check, and call each peer once, so that what is compiled at a first call is in the caches of a later run."""
        self.only, self.ops, self.report, self.timer, self.prepare = only, ops, report, Timer(SETS, rest), prepare
        self.meter = Meter()
        self.packages, self.found = packages, []  # found: of each case its name, the best peer's ratio, the share of a copy
        versions = {name: metadata.version(package) for name, package in PEERS.items() if self.has(package)}
        self.names = {name: f"{name}; {version}" for name, version in versions.items()}
        print(f"{torch.cuda.get_device_name()}, triton {metadata.version('triton')},", ", ".join(self.names.values()))
        try:
            import liger_kernel.ops as liger

            self.liger = liger
        except ImportError as error:
            self.liger = None
            print(f"Liger is left out: {error}")

    @staticmethod
    def has(package):
        try:
            return bool(metadata.version(package))
        except metadata.PackageNotFoundError:
            return False

    def wants(self, op, shape=""):
        """Without a shape: whether any of them may be wanted."""
        if shape:
            return not self.only or any(part in f"{op} {shape}" for part in self.only)
        return not self.only or any(part.split()[0] in op for part in self.only)

    def wants_some(self, ops, shape):
        return any([self.wants(op, shape) for op in ops])

    def compiled(self, fn):
        torch._dynamo.reset()
        return torch.compile(fn, dynamic=False)

    def face(self, package):
        """The package's Python API, whose functions have gradients."""
        os.environ["HOTSWAP_PACKAGES"] = str(self.packages)
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
        from hotswap.packages import load

        return load(package)

    def run(self, op, shape, peers, bytes_moved=0, target="", check=None, memory=None, dtype="bfloat16", least=4):
        """bytes_moved: what the case has to read and write at least, for the share of a copy."""
        if not self.wants(op, shape):
            return
        if check is not None:
            got, want = check()
            error = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
            if not error <= BF16_ERROR:
                sys.exit(f"{op} {shape}: expected a relative error of at most {BF16_ERROR}; got {error}: not timed")
            print(f"{op} {shape}: error {error:.1e}")
        if self.prepare:
            for call in filter(None, peers.values()):
                call(0)
            return
        copy = self.timer.copy_us(bytes_moved) if bytes_moved else None
        begin = time.perf_counter()
        times = self.timer.in_turns({name: call for name, call in peers.items() if call}, least)
        clock, power = self.meter.between(begin, time.perf_counter())
        load = f"{clock:.0f} MHz, {power:.0f} W" + f", rests of {self.timer.rest:g} s" * (self.timer.rest > 0)
        memory = memory or {}
        ours = times.pop("ours")
        share = copy[0] / ours[0] if copy else ""
        # Cleared, as the target is meant: what fits in L2 would be measured there otherwise.
        best = min((us[1] for name, us in times.items() if not is_floor(name)), default=None)
        self.found.append((f"{op} {shape} {dtype}", best and best / ours[1], copy and copy[1] / ours[1]))
        if copy:
            times[COPY] = copy
        for name, us in times.items() or {"": ("", "")}.items():
            self.report.add(
                kind="op", what=op, shape=shape, dtype=dtype, unit="us", target=target, ours=ours[0], ours_cleared=ours[1],
                ours_memory=memory.get("ours", ""), peer=us[0], peer_cleared=us[1], peer_memory=memory.get(name, ""),
                peer_name=self.names.get(name, name), memcpy_share=share, load=load,
            )  # fmt: skip

    def summary(self):
        """What is behind the best peer or far from a copy, first; L2 cleared before each call."""
        behind = lambda case: (case[1] or 1) < 1 or (case[2] or 1) < 0.85
        for title, some in (
            ("behind the best peer, or below 0.85 of a copy", [f for f in self.found if behind(f)]),
            ("all others", [f for f in self.found if not behind(f)]),
        ):
            print(f"\n{title}: {len(some)}")
            for name, ratio, share in sorted(some, key=lambda f: f[1] or f[2] or 0):
                of_peer = "no peer" if ratio is None else f"{ratio:.2f} of the best peer's speed"
                print(f"  {name:50} {of_peer}" + (f", {share:.2f} of a copy" if share else ""))


def step_of(fn, leaves, gradients=None):
    """A call that runs forward and backward as a user does: fn(*leaves of the set)."""

    def call(i):
        return torch.autograd.grad(fn(*leaves[i]), leaves[i], None if gradients is None else gradients[i])

    return call


def leaves_of(*tensors):
    """Of each set a tuple of leaves; a tensor that is no list is in each."""
    part = lambda t, i: (t[i] if isinstance(t, list) else t).detach().clone(memory_format=torch.preserve_format)
    return [tuple(part(t, i).requires_grad_() for t in tensors) for i in range(SETS)]


def backward_of(outputs, inputs, gradients):
    """A call that runs only the backward of graphs made beforehand."""
    return lambda i: torch.autograd.grad(outputs[i], inputs[i], gradients[i], retain_graph=True)


def memory_of(peers, gradients, *leaves):
    """Bytes over the inputs and their gradients that each call needs at most."""
    found = {name: peer_memory(call, leaves) - gradients for name, call in peers.items() if call}
    print("  MiB over inputs and gradients:", ", ".join(f"{n} {m / 2**20:.0f}" for n, m in found.items()), flush=True)
    return found
