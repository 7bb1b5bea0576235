"""Mamba's ops on a GPU beside a copy of the same bytes, torch's own way, and mamba-ssm's and causal-conv1d's kernels where
they are given.

    mamba.py --packages build/packages [--scan peer_scan.so] [--conv peer_conv.so] [--triton FOLDER] [--only REGEX] [--csv FILE]

Batch 4, 8192 channels of 16 states, 4096 tokens, bfloat16: channels beside each other (halves of one projection, as
transformers hands them over) and tokens beside each other. The steps of generation are of 64 rows. Values and gradients are
compared with float64's first, on some channels.

Microseconds by CUDA events, the median of rounds in which all of a row take turns; each also after a write that fills L2.
Steps of generation, and the copy beside them, are replayed from a graph.
The libraries are causal-conv1d's and mamba-ssm's sources, with their functions as torch.ops.peer_conv and peer_scan; the
folder has mamba_ssm's Triton kernels in it.
"""

import argparse
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parents[3]))  # where the package bench is
from bench.lib import results  # noqa: E402
from bench.lib.gpu_common import Timer, load_packages, relative_error  # noqa: E402

B, D, L, N, W = 4, 8192, 4096, 16, 4
ROWS = 64  # of a step of generation
CAPTURED = 48  # steps of a graph, at least
SLICE = 64  # channels that are compared
SCANS = ((B, D), (1, 4096))  # batch and channels; the second is mamba-1.4b's one sequence
SSD = (  # batch, length, heads, dim, groups, state: mamba2-2.7b's, mamba2-1.3b's in one sequence, Nemotron-H's
    (4, 4096, 80, 64, 1, 128), (1, 2048, 64, 64, 1, 128), (2, 8192, 128, 64, 8, 128),
)  # fmt: skip
CONV, SCAN, TRITON = "causal-conv1d", "mamba-ssm", "mamba-ssm, Triton"
# GB/s of the convolution and milliseconds of the scan are the issue's; the steps' are a share of a copy.
TARGETS = {
    "causal_conv1d": "4050 GB/s", "causal_conv1d_bwd": "4050 GB/s", "selective_scan": "1.0 ms", "selective_scan_bwd": "4.0 ms",
    "ssd": "2x the peer", "ssd_bwd": "1.5x the peer", "selective_state_update": "0.85 of a copy", "causal_conv1d_update": "0.85 of a copy",
}  # fmt: skip


def rand(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def halves(layout, batch=B, channels=D):
    """Two tensors [batch, channels, L] with channels beside each other, parts of one, or tokens."""
    if layout == "tokens":
        return rand(batch, channels, L), rand(batch, channels, L)
    return rand(batch, L, 2 * channels).transpose(1, 2).chunk(2, 1)


def grads(outputs, inputs, dys):
    return torch.autograd.grad(outputs, inputs, dys, retain_graph=True)


def captured(call, given):
    for one in given[:2]:  # what is made at a first call
        call(one)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in given:
            call(one)
    return graph


class Bench:
    def __init__(self, args):
        self.only = re.compile(args.only)
        self.ops = load_packages(args.packages)["mamba"]
        self.timer, self.report = Timer(1), results.Results(args, results.gpu())

    def wants(self, what):
        return self.only.search(what)

    def check(self, what, got, want, limits):
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            error = relative_error(g, w)
            limit = limits[i] if isinstance(limits, list) else limits
            if not error <= limit:
                raise AssertionError(f"{what}, result {i}: expected float64's within {limit:.1e}; got {error:.1e}")

    def run(self, what, shape, moved, ours, **peers):
        """moved: the bytes that must be read and written. Rows' numbers are microseconds."""
        calls = {"ours": ours} | {name: call for name, call in peers.items() if call}
        seen = self.timer.in_turns({name: lambda i, call=call: call() for name, call in calls.items()})
        self.add(what, shape, moved, seen, self.timer.copy_us(moved))

    def run_steps(self, what, shape, moved, states, ours, **peers):
        """The same of calls with a state, which are so many that none is still in L2. Generation replays its steps from a graph,
        and so does this: the host is slower than such a call."""
        pairs = [[torch.randint(0, 256, (moved // 2,), dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in states]
        calls = {"ours": (ours, states), "": (lambda pair: pair[1].copy_(pair[0]), pairs)}
        calls |= {name: (call, states) for name, call in peers.items() if call}
        rounds = -(-CAPTURED // len(states))
        graphs = {name: captured(call, given * rounds) for name, (call, given) in calls.items()}
        seen = self.timer.in_turns({name: lambda i, graph=graph: graph.replay() for name, graph in graphs.items()})
        seen = {name: tuple(us / (rounds * len(states)) for us in both) for name, both in seen.items()}
        self.add(what, shape, moved, seen, seen.pop(""))

    def add(self, what, shape, moved, seen, of_copy):
        us, cleared = seen.pop("ours")
        copy, copy_cleared = of_copy
        common = dict(kind="op", what=what, shape=shape, dtype="bfloat16", ours=us, ours_cleared=cleared, unit="us",
                      target="" if "B1 " in shape else TARGETS.get(what, ""))  # fmt: skip
        print(f"{what} {shape}: {moved / us / 1e3:.0f} GB/s, cleared {moved / cleared / 1e3:.0f}; a copy {moved / copy / 1e3:.0f}, {moved / copy_cleared / 1e3:.0f}")
        for name, (theirs, theirs_cleared) in (seen or {"a copy": (copy, copy_cleared)}).items():
            self.report.add(**common, memcpy_share=copy_cleared / cleared, peer=theirs, peer_cleared=theirs_cleared, peer_name=name)


def conv(bench, peer):
    ops, weight, bias = bench.ops, rand(D, W), rand(D)
    for layout in ("channels", "tokens"):
        x, _ = halves(layout)
        dy, _ = halves(layout)
        forward = lambda t=x, w=weight, b=bias: ops.causal_conv1d(t, w, b, None, None, "silu")
        backward = lambda d=dy, t=x, w=weight, b=bias: ops.causal_conv1d_bwd(d, t, w, b, None, None, "silu")
        few = [t.double().requires_grad_() for t in (x[:1, :SLICE], weight[:SLICE], bias[:SLICE])]
        y = F.silu(F.conv1d(few[0], few[1].unsqueeze(1), few[2], padding=W - 1, groups=SLICE)[..., :L])
        own = (dy[:1, :SLICE], x[:1, :SLICE], weight[:SLICE], bias[:SLICE])
        bench.check("causal_conv1d", [forward()[:1, :SLICE], *backward(*own)[:3]], [y, *grads(y, few, own[0].double())], 2**-8)
        shape = f"B{B} D{D} L{L} W{W} {layout} beside each other"
        theirs = back = None
        if peer:
            out, dx = torch.empty_like(x), torch.empty_like(x)

            def theirs():
                return torch.ops.peer_conv.fwd(x, weight, bias, out, True)

            def back():
                dw, db = torch.zeros(D, W, device="cuda"), torch.zeros(D, device="cuda")
                return torch.ops.peer_conv.bwd(x, weight, bias, dy, dx, dw, db, True)

        def eager():
            return F.silu(F.conv1d(x, weight.unsqueeze(1), bias, padding=W - 1, groups=D)[..., :L])

        plain = {"torch": eager} if layout == "tokens" else {}
        bench.run("causal_conv1d", shape, 2 * x.numel() * 2, forward, **{CONV: theirs}, **plain)
        bench.run("causal_conv1d_bwd", shape, 3 * x.numel() * 2, backward, **{CONV: back})


def loop(u, delta, a, b, c, d, z, bias):
    """Token by token in the inputs' dtype."""
    delta = F.softplus(delta + bias[:, None])
    h, ys = torch.zeros(*u.shape[:2], a.shape[1], dtype=u.dtype, device="cuda"), []
    for t in range(u.shape[2]):
        h = (delta[:, :, t, None] * a).exp() * h + (delta[:, :, t] * u[:, :, t]).unsqueeze(2) * b[:, None, :, t]
        ys.append((h * c[:, None, :, t]).sum(2))
    return (torch.stack(ys, 2) + d[:, None] * u) * F.silu(z)


def scan(bench, peer):
    for batch, channels in SCANS:
        scan_of(bench, peer, batch, channels)


def scan_of(bench, peer, batch, channels):
    ops = bench.ops
    a, d, bias = -rand(channels, N).float().exp(), rand(channels).float(), rand(channels).float() - 4
    for layout in ("channels", "tokens"):
        u, z = halves(layout, batch, channels)
        delta, dy = (t.contiguous() if layout == "tokens" else t for t in halves(layout, batch, channels))
        tokens = lambda: rand(batch, N, L)
        b, c = rand(batch, L, 2 * N).transpose(1, 2).chunk(2, 1) if layout == "channels" else (tokens(), tokens())
        inputs = lambda s=channels, n=batch: (u[:n, :s], delta[:n, :s], a[:s], b[:n], c[:n], d[:s], z[:n, :s], bias[:s], None, None)
        forward = lambda: ops.selective_scan(*inputs(), True)
        train = lambda: ops.selective_scan_fwd(*inputs(), True)
        saved = train()[2]
        backward = lambda: ops.selective_scan_bwd(dy, None, *inputs(), saved, True)
        few = [t.double().requires_grad_() for t in inputs(SLICE, 1)[:8]]
        y = loop(*few)
        own = ops.selective_scan_fwd(*inputs(SLICE, 1), True)
        got = ops.selective_scan_bwd(dy[:1, :SLICE], None, *inputs(SLICE, 1), own[2], True)
        bench.check("selective_scan", [forward()[0][:1, :SLICE], own[0], *got[:8]], [y, y, *grads(y, few, dy[:1, :SLICE].double())], 2**-7)
        shape = f"B{batch} D{channels} L{L} N{N} {layout} beside each other"
        theirs = back = None
        if peer and layout == "tokens":  # which is all that it takes without a copy
            b4, c4 = b.unsqueeze(1).contiguous(), c.unsqueeze(1).contiguous()
            args = (u, delta, a, b4, c4, d, z, bias)
            out, x, *_ = torch.ops.peer_scan.fwd(*args, True)
            theirs = lambda: torch.ops.peer_scan.fwd(*args, True)
            back = lambda: torch.ops.peer_scan.bwd(*args, dy, x, out, None, True, False)
        moved = 4 * u.numel() * 2
        bench.run("selective_scan", shape, moved, forward, **{SCAN: theirs})
        bench.run("selective_scan_fwd", shape, moved, train, **{SCAN: theirs})
        bench.run("selective_scan_bwd", shape, 7 * u.numel() * 2, backward, **{SCAN: back})
        del saved, own, got, few, y


def updates(bench, conv_peer, triton):
    ops = bench.ops
    update = None
    if triton:
        from mamba_ssm.ops.triton.selective_state_update import selective_state_update as update

    # Mamba: each channel its own rates. Mamba-2: one a head.
    x, dt, z = rand(ROWS, D), rand(ROWS, D), rand(ROWS, D)
    a, d, bias, b, c = -rand(D, N).float().exp(), rand(D).float(), rand(D).float(), rand(ROWS, N), rand(ROWS, N)
    states = [rand(ROWS, D, N).float() for _ in range(4)]
    ours = lambda s: ops.selective_state_update(s, x, dt, a, b, c, d, z, bias, None, True)
    theirs = update and (lambda s: update(s, x, dt, a, b, c, d, z, bias, True))
    s64 = states[0].double()
    delta = F.softplus(dt.double() + bias)
    s64 = (delta.unsqueeze(2) * a).exp() * s64 + (delta * x).unsqueeze(2) * b[:, None].double()
    y = ((s64 * c[:, None]).sum(2) + d * x.double()) * F.silu(z.double())
    mine = states[0].clone()
    bench.check("selective_state_update", [ours(mine), mine], [y, s64], 2**-8)
    moved = 2 * states[0].numel() * 4 + 4 * x.numel() * 2
    bench.run_steps("selective_state_update", f"{ROWS} rows D{D} N{N}", moved, states, ours, **{TRITON: theirs})

    heads, dim, wide = 80, 64, 128
    x, z, b, c = rand(ROWS, heads, dim), rand(ROWS, heads, dim), rand(ROWS, 1, wide), rand(ROWS, 1, wide)
    dt = rand(ROWS, heads, 1).expand(-1, -1, dim)
    a = -rand(heads, 1, 1).float().exp().expand(-1, dim, wide)
    d, bias = (rand(heads, 1).float().expand(-1, dim) for _ in range(2))
    states = [rand(ROWS, heads, dim, wide).float() for _ in range(2)]
    ours = lambda s: ops.selective_state_update(s, x, dt, a, b, c, d, z, bias, None, True)
    theirs = update and (lambda s: update(s, x, dt, a, b, c, d, z, bias, True))
    moved = 2 * states[0].numel() * 4 + 4 * x.numel() * 2
    bench.run_steps("selective_state_update", f"{ROWS} rows H{heads} P{dim} N{wide}", moved, states, ours, **{TRITON: theirs})

    x, weight, bias = rand(ROWS, D), rand(D, W), rand(D)
    states = [rand(ROWS, D, W - 1) for _ in range(24)]
    ours = lambda s: ops.causal_conv1d_update(x, s, weight, bias, None, None, "silu")
    theirs, out = None, torch.empty_like(x)
    if conv_peer:
        theirs = lambda s: torch.ops.peer_conv.update(x.unsqueeze(2), s, weight, bias, out.unsqueeze(2), True)
    want = states[0].clone()
    line = torch.cat([want, x.unsqueeze(2)], 2)
    y = F.silu((line.double() * weight.double()).sum(2) + bias.double())
    bench.check("causal_conv1d_update", [ours(want), want], [y, line[..., 1:]], 2**-8)
    moved = 2 * states[0].numel() * 2 + 2 * x.numel() * 2
    bench.run_steps("causal_conv1d_update", f"{ROWS} rows D{D} W{W}", moved, states, ours, **{CONV: theirs})


def recurrence(x, dt, a, b, c, d, bias):
    """Token by token in the inputs' dtype: y and the last state."""
    delta, each = F.softplus(dt + bias), x.shape[2] // b.shape[2]
    h, ys = torch.zeros(*x.shape[::2], x.shape[3], b.shape[3], dtype=x.dtype, device="cuda"), []
    for t in range(x.shape[1]):
        row, column = (v[:, t].repeat_interleave(each, 1) for v in (b, c))
        h = (delta[:, t] * a).exp()[..., None, None] * h + (delta[:, t, :, None] * x[:, t])[..., None] * row[:, :, None]
        ys.append((h * column[:, :, None]).sum(3) + d[:, None] * x[:, t])
    return torch.stack(ys, 1), h


def ssd(bench, triton):
    ops = bench.ops
    for batch, length, heads, dim, groups, state in SSD:
        x, dy = rand(batch, length, heads, dim), rand(batch, length, heads, dim)
        dt, b, c = rand(batch, length, heads), rand(batch, length, groups, state), rand(batch, length, groups, state)
        a, d, bias = -torch.rand(heads, device="cuda") * 15 - 1, rand(heads).float(), rand(heads).float() - 4
        inputs = x, dt, a, b, c, d, None, bias, None, None
        settings = 256, True, 0.0, float("inf")
        forward = lambda: ops.ssd(*inputs, *settings)
        saved = ops.ssd_fwd(*inputs, *settings)[2]
        backward = lambda: ops.ssd_bwd(dy, None, *inputs, saved, *settings)
        # Heads of all groups, some chunks. So many heads, and a wider limit, because dA and dbias are sums over all tokens of terms
        # of both signs: one bfloat16 rounding of the inputs moves a head's dA by more than 2^-7 of it in 18 of 100 draws.
        few, many = slice(0, heads, heads // max(groups, 16)), 300
        own = x[:1, :many, few].contiguous(), dt[:1, :many, few].contiguous(), a[few], b[:1, :many], c[:1, :many], d[few], None, bias[few], None, None
        leaves = [t.double().requires_grad_() for t in own if t is not None]
        y, last = recurrence(*leaves)
        got = ops.ssd_fwd(*own, *settings)
        back = ops.ssd_bwd(dy[:1, :many, few].contiguous(), None, *own, got[2], *settings)
        wanted = grads(y, leaves, dy[:1, :many, few].double())
        names = "y", "last", "dx", "ddt", "dA", "dB", "dC", "dD", "dbias"
        limits = [2**-5 if name in ("dA", "dbias") else 2**-7 for name in names]
        bench.check("ssd", [*got[:2], *(g for g in back if g.numel())], [y, last, *wanted], limits)
        theirs = peer_back = None
        if triton:
            from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

            given = [t.detach().clone().requires_grad_() for t in (x, dt, a, b, c, d, bias)]
            call = lambda: mamba_chunk_scan_combined(*given[:5], 256, D=given[5], dt_bias=given[6], dt_softplus=True)
            made = call()

            @torch.no_grad()
            def theirs():
                return call()

            def peer_back():
                return torch.autograd.grad(made, given, dy, retain_graph=True)

        shape = f"B{batch} L{length} H{heads} P{dim} G{groups} N{state}"
        bench.run("ssd", shape, 2 * x.numel() * 2, forward, **{TRITON: theirs})
        bench.run("ssd_bwd", shape, 3 * x.numel() * 2, backward, **{TRITON: peer_back})
        for name, call in {"ours": backward, "Triton": peer_back}.items():
            if call:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                kept = call()
                print(f"ssd_bwd {shape} {name}: {(torch.cuda.max_memory_allocated() - before) / 2**20:.0f} MiB beside its inputs")
                del kept
        made = None
        bench.report.flush()  # the next shape may wait long for Triton's tuning


def gated_norm(bench, triton):
    ops, tokens, wide = bench.ops, 16384, 5120
    x, z, dy, w = rand(tokens, wide), rand(tokens, wide), rand(tokens, wide), rand(wide)
    y, rstd = ops.gated_rms_norm_fwd(x, z, w, 1e-5, wide, False)
    few = [t.double().requires_grad_() for t in (x[:SLICE], z[:SLICE], w)]
    u = few[0] * F.silu(few[1])
    want = u * (u.square().mean(-1, True) + 1e-5).rsqrt() * few[2]
    got = ops.gated_rms_norm_bwd(dy[:SLICE], x[:SLICE], z[:SLICE], w, rstd[:SLICE], wide, False)
    bench.check("gated_rms_norm", [y[:SLICE], *got], [want, *grads(want, few, dy[:SLICE].double())], 2**-7)
    theirs = back = None
    if triton:
        from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

        leaves = [t.clone().requires_grad_() for t in (x, z, w)]
        call = lambda: rmsnorm_fn(leaves[0], leaves[2], None, leaves[1], 1e-5, None, False)
        made = call()

        @torch.no_grad()
        def theirs():
            return call()

        def back():
            return torch.autograd.grad(made, leaves, dy, retain_graph=True)

    shape = f"{tokens}x{wide}"
    bench.run("gated_rms_norm", shape, 3 * x.numel() * 2, lambda: ops.gated_rms_norm(x, z, w, 1e-5, wide, False), **{TRITON: theirs})
    bench.run("gated_rms_norm_bwd", shape, 5 * x.numel() * 2, lambda: ops.gated_rms_norm_bwd(dy, x, z, w, rstd, wide, False), **{TRITON: back})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--scan", type=Path, help="mamba-ssm's selective scan")
    parser.add_argument("--conv", type=Path, help="causal-conv1d")
    parser.add_argument("--triton", type=Path, help="a folder with mamba_ssm in it")
    parser.add_argument("--only", default="")
    results.add_flags(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    for library in (args.scan, args.conv):
        if library:
            torch.ops.load_library(library)
    if args.triton:
        sys.path.insert(0, str(args.triton))
    bench = Bench(args)
    parts = {
        "conv": lambda: conv(bench, args.conv),
        "scan": lambda: scan(bench, args.scan),
        "update": lambda: updates(bench, args.conv, args.triton),
        "ssd": lambda: ssd(bench, args.triton),
        "gated_norm": lambda: gated_norm(bench, args.triton),
    }
    for name, part in parts.items():
        if bench.wants(name):
            part()
            bench.report.flush()


if __name__ == "__main__":
    main()
