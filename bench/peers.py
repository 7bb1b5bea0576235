"""The operators of the packages on a GPU against torch, torch.compile, transformers' layers and Liger, in one process.

    peers.py --packages build/packages [--only rms_norm,silu] [--csv bench/results.csv --date D --commit C]

Each case: our op is checked against float64 on some rows, then everybody's time is taken in turns with CUDA events over
three sets of inputs, medians of five rounds: call after call, and each call after a write that fills L2 with other lines
(`cleared`). Forward runs without autograd, backward through torch.autograd.grad on a graph that is kept. Peers are the
installed ones, with their versions in every row; one that cannot be imported is left out, and said so.
"""

import argparse
import csv
import sys
from importlib import metadata
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu_common import Timer, load_packages, peer_memory, relative_error  # noqa: E402
from speed import COLUMNS  # noqa: E402

SETS = 3
PACKAGES = {"torch": "torch", "torch.compile": "torch", "transformers": "transformers", "Liger": "liger_kernel"}
BF16_ERROR = 8e-3
EPS = 1e-6


def randoms(*shape, scale=1.0, grad=False):
    made = [(torch.randn(*shape, device="cuda") * scale).bfloat16() for _ in range(SETS)]
    return [t.requires_grad_(grad) for t in made]


class Cases:
    """Collects (op, shape, bytes, target, {peer: function of the set}); `ours` is the peer named "ours"."""

    def __init__(self, args, ops, timer):
        self.args, self.ops, self.timer, self.rows = args, ops, timer, []
        versions = {name: metadata.version(package) for name, package in PACKAGES.items() if self.has(package)}
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

    def wants(self, op):
        return not self.args.only or any(part in op for part in self.args.only)

    def compiled(self, fn):
        torch._dynamo.reset()
        return torch.compile(fn, dynamic=False)

    def run(self, op, shape, peers, bytes_moved=0, target="", check=None, memory=None):
        if not self.wants(op):
            return
        note = ""
        if check is not None:
            got, want = check()
            error = max(relative_error(g, w) for g, w in zip(got, want, strict=True))
            if not error <= BF16_ERROR:
                sys.exit(f"{op} {shape}: wanted a relative error of at most {BF16_ERROR}; got {error}: not timed")
            note = f"error {error:.1e}"
        copy = self.timer.copy_us(bytes_moved) if bytes_moved else None
        times = self.timer.in_turns({name: call for name, call in peers.items() if call})
        memory = memory or {}
        ours = times.pop("ours")
        share = [f"{c / o:.3f}" for c, o in zip(copy, ours, strict=True)] if copy else ["", ""]
        text = "  ".join(f"{n} {us[0]:.1f} | {us[1]:.1f} ({us[0] / ours[0]:.2f}x | {us[1] / ours[1]:.2f}x)"
                         for n, us in times.items())  # fmt: skip
        print(f"{op:22} {shape:20} ours {ours[0]:.1f} | {ours[1]:.1f} us, of copy {' | '.join(share)}  {text}  {note}")
        sys.stdout.flush()
        for name, us in times.items() or {"": None}.items():
            theirs = {} if us is None else dict(
                peer=f"{us[0]:.3f}", peer_cleared=f"{us[1]:.3f}", ratio=f"{us[0] / ours[0]:.3f}",
                peer_memory=memory.get(name, ""))  # fmt: skip
            self.rows.append(
                dict(kind="op", what=op, shape=shape, dtype="bfloat16", ours=f"{ours[0]:.3f}", unit="us", target=target,
                     ours_cleared=f"{ours[1]:.3f}", peer_name=self.names.get(name, name), memcpy_share=share[0],
                     ours_memory=memory.get("ours", ""), **theirs)
            )  # fmt: skip


def backward_of(outputs, inputs, gradients):
    """A call that runs only the backward of graphs made beforehand."""
    return lambda i: torch.autograd.grad(outputs[i], inputs[i], gradients[i], retain_graph=True)


def norms(c):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    F, norm, rows = torch.nn.functional, c.ops["norm"], 16384
    for cols in (2048, 4096, 8192):
        if not c.wants("rms_norm") and not (cols == 4096 and c.wants("layer_norm")):
            continue
        shape, one = f"{rows}x{cols}", rows * cols * 2
        x, r, dy, dh = (randoms(rows, cols) for _ in range(4))
        w, b = torch.randn(cols, device="cuda").bfloat16(), torch.randn(cols, device="cuda").bfloat16()
        layer = LlamaRMSNorm(cols, EPS).cuda().bfloat16()
        layer.weight.data.copy_(w)
        leaf = [t.detach().clone().requires_grad_() for t in x]
        wleaf, bleaf = w.clone().requires_grad_(), b.clone().requires_grad_()

        def hf(x, w):
            f = x.float()
            return w * (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)

        def wide(x, w):
            f = x.double()
            return f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS) * w.double()

        L, few = c.liger, slice(0, 256)
        with torch.no_grad():
            fast = c.compiled(hf)
            c.run("rms_norm", shape, {
                "ours": lambda i: norm.rms_norm(x[i], w, EPS, 0.0, "llama"),
                "torch": lambda i: F.rms_norm(x[i], (cols,), w, EPS),
                "torch.compile": lambda i: fast(x[i], w),
                "transformers": lambda i: layer(x[i]),
                "Liger": L and (lambda i: L.LigerRMSNormFunction.apply(x[i], w, EPS, 0.0, "llama", False)),
            }, 2 * one, "0.92 of copy",
               lambda: ([norm.rms_norm(x[0], w, EPS, 0.0, "llama")[few]], [wide(x[0][few], w)]))  # fmt: skip
            fast_add = c.compiled(lambda x, r, w: (lambda h: (hf(h, w), h))(x + r))
            c.run("add_rms_norm", shape, {
                "ours": lambda i: norm.add_rms_norm(x[i], r[i], w, EPS, 0.0, "llama"),
                "torch; two kernels": lambda i: F.rms_norm(x[i] + r[i], (cols,), w, EPS),
                "torch.compile": lambda i: fast_add(x[i], r[i], w),
                "Liger": L and (lambda i: L.LigerFusedAddRMSNormFunction.apply(x[i], r[i], w, EPS, 0.0, "llama")),
            }, 4 * one, "0.92 of copy",
               lambda: ([norm.add_rms_norm(x[0], r[0], w, EPS, 0.0, "llama")[0][few]],
                        [wide((x[0] + r[0])[few], w)]))  # fmt: skip
        if not c.wants("rms_norm_bwd") and not (cols == 4096 and c.wants("layer_norm")):
            continue
        rstd = [norm.rms_norm_fwd(t, w, EPS, 0.0, "llama")[1] for t in x]
        pair = [(t, wleaf) for t in leaf]

        def rms_gradients():
            few_x, few_w = x[0][few].double().requires_grad_(), w.double().requires_grad_()
            want = torch.autograd.grad(wide(few_x, few_w), (few_x, few_w), dy[0][few].double())
            return norm.rms_norm_bwd(dy[0][few], x[0][few], w, rstd[0][few], 0.0, "llama"), want

        fast = c.compiled(hf)
        graph = lambda fn: backward_of([fn(t, wleaf) for t in leaf], pair, dy)
        c.run("rms_norm_bwd", shape, {
            "ours": lambda i: norm.rms_norm_bwd(dy[i], x[i], w, rstd[i], 0.0, "llama"),
            "torch": graph(lambda t, w: F.rms_norm(t, (cols,), w, EPS)),
            "torch.compile": graph(fast),
            "transformers": graph(hf),
            "Liger": L and graph(lambda t, w: L.LigerRMSNormFunction.apply(t, w, EPS, 0.0, "llama", False)),
        }, 3 * one, "0.85 of copy", rms_gradients)  # fmt: skip
        c.run("add_rms_norm_bwd", shape, {
            "ours": lambda i: norm.add_rms_norm_bwd(dy[i], dh[i], x[i], w, rstd[i], 0.0, "llama"),
        }, 4 * one, "0.85 of copy")  # fmt: skip
        if cols != 4096:
            continue
        plain = lambda x, w, b: F.layer_norm(x, (cols,), w, b, EPS)
        with torch.no_grad():
            fast = c.compiled(plain)
            c.run("layer_norm", shape, {
                "ours": lambda i: norm.layer_norm(x[i], w, b, EPS),
                "torch": lambda i: plain(x[i], w, b),
                "torch.compile": lambda i: fast(x[i], w, b),
                "Liger": L and (lambda i: L.LigerLayerNormFunction.apply(x[i], w, b, EPS)),
            }, 2 * one, "0.92 of copy",
               lambda: ([norm.layer_norm(x[0], w, b, EPS)[few]],
                        [plain(x[0][few].double(), w.double(), b.double())]))  # fmt: skip
        saved = [norm.layer_norm_fwd(t, w, b, EPS)[1:] for t in x]
        triple = [(t, wleaf, bleaf) for t in leaf]
        graph = lambda fn: backward_of([fn(t, wleaf, bleaf) for t in leaf], triple, dy)

        def layer_gradients():
            inputs = [t.double().requires_grad_() for t in (x[0][few], w, b)]
            want = torch.autograd.grad(plain(*inputs), inputs, dy[0][few].double())
            return norm.layer_norm_bwd(dy[0][few], x[0][few], w, saved[0][0][few], saved[0][1][few]), want

        c.run("layer_norm_bwd", shape, {
            "ours": lambda i: norm.layer_norm_bwd(dy[i], x[i], w, *saved[i]),
            "torch": graph(plain),
            "torch.compile": graph(c.compiled(plain)),
            "Liger": L and graph(lambda t, w, b: L.LigerLayerNormFunction.apply(t, w, b, EPS)),
        }, 3 * one, "0.85 of copy", layer_gradients)  # fmt: skip


def activations(c):
    from transformers.activations import ACT2FN

    act, mlp, F, rows, cols = c.ops["activation"], c.ops["mlp"], torch.nn.functional, 16384, 8192
    if not any(c.wants(name) for name in ("silu", "gelu", "swiglu")):
        return
    shape, one, few = f"{rows}x{cols}", rows * cols * 2, slice(0, 64)
    x, up, dy = randoms(rows, cols, scale=2), randoms(rows, cols), randoms(rows, cols)
    packed = [torch.cat([a, b], -1) for a, b in zip(x, up, strict=True)]
    leaf = [t.detach().clone().requires_grad_() for t in x]
    table = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "gelu_new": "gelu_new",
             "gelu_fast": "gelu_fast", "gelu_quick": "quick_gelu"}  # fmt: skip
    for op, name in table.items():
        if not c.wants(op):
            continue
        layer = ACT2FN[name]
        with torch.no_grad():
            fast = c.compiled(layer)
            c.run(op, shape, {
                "ours": lambda i: getattr(act, op)(x[i]),
                "transformers": lambda i: layer(x[i]),
                "torch.compile": lambda i: fast(x[i]),
            }, 2 * one, "0.95 of copy",
               lambda: ([getattr(act, op)(x[0])[few]], [layer(x[0][few].double())]))  # fmt: skip
        fast_too = c.compiled(layer)
        c.run(op + "_bwd", shape, {
            "ours": lambda i: getattr(act, op + "_bwd")(dy[i], x[i]),
            "transformers": backward_of([layer(t) for t in leaf], leaf, dy),
            "torch.compile": backward_of([fast_too(t) for t in leaf], leaf, dy),
        }, 3 * one, "0.95 of copy")  # fmt: skip
    gates = {"silu_and_mul": ("silu", "LigerSiLUMulFunction"), "gelu_and_mul": ("gelu", None),
             "gelu_tanh_and_mul": ("gelu_pytorch_tanh", "LigerGELUMulFunction")}  # fmt: skip
    both = [(a, b.detach().clone().requires_grad_()) for a, b in zip(leaf, up, strict=True)]
    for op, (name, theirs) in gates.items():
        if not c.wants(op):
            continue
        layer, liger = ACT2FN[name], theirs and c.liger and getattr(c.liger, theirs)
        plain = lambda gate, up: layer(gate) * up
        with torch.no_grad():
            fast = c.compiled(plain)
            c.run(op, shape, {
                "ours": lambda i: getattr(act, op)(packed[i]),
                "transformers": lambda i: plain(x[i], up[i]),
                "torch.compile": lambda i: fast(x[i], up[i]),
                "Liger": liger and (lambda i: liger.apply(x[i], up[i])),
            }, 3 * one, "0.97 of copy",
               lambda: ([getattr(act, op)(packed[0])[few]],
                        [plain(x[0][few].double(), up[0][few].double())]))  # fmt: skip
        graph = lambda fn: backward_of([fn(*t) for t in both], both, dy)
        c.run(op + "_bwd", shape, {
            "ours": lambda i: getattr(act, op + "_bwd")(dy[i], packed[i]),
            "transformers": graph(plain),
            "torch.compile": graph(c.compiled(plain)),
            "Liger": liger and graph(liger.apply),  # writes over its inputs: values drift, the work stays the same
        }, 5 * one, "0.95 of copy")  # fmt: skip
    for op, layer in (("swiglu", ACT2FN["silu"]), ("geglu", ACT2FN["gelu_pytorch_tanh"])):
        c.run(op, shape, {
            "ours": lambda i: getattr(mlp, op)(x[i], up[i]),
        }, 3 * one, "0.97 of copy",
           lambda: ([getattr(mlp, op)(x[0], up[0])[few]],
                    [layer(x[0][few].double()) * up[0][few].double()]))  # fmt: skip
        c.run(op + "_bwd", shape, {
            "ours": lambda i: getattr(mlp, op + "_bwd")(dy[i], x[i], up[i])
        }, 5 * one, "0.95 of copy")  # fmt: skip


def rotary(c):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    if not c.wants("rotary"):
        return
    ops, batch, time, heads, kv, dim = c.ops["rotary"], 4, 4096, 32, 8, 128
    shape, moved = f"{batch}x{time}x{heads}/{kv}x{dim}", 2 * batch * time * (heads + kv) * dim * 2
    q = [t.transpose(1, 2) for t in randoms(batch, time, heads, dim)]
    k = [t.transpose(1, 2) for t in randoms(batch, time, kv, dim)]
    angle = torch.outer(torch.arange(time).float(), 5e5 ** (-torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)[None]
    cos, sin = angle.cos().bfloat16().cuda(), angle.sin().bfloat16().cuda()
    with torch.no_grad():
        fast = c.compiled(apply_rotary_pos_emb)
        c.run("rotary", shape, {
            "ours": lambda i: ops.rotary(q[i], k[i], cos, sin, dim, False),
            "transformers": lambda i: apply_rotary_pos_emb(q[i], k[i], cos, sin),
            "torch.compile": lambda i: fast(q[i], k[i], cos, sin),
        }, moved, "85 us",
           lambda: (ops.rotary(q[0], k[0], cos, sin, dim, False),
                    apply_rotary_pos_emb(*(t.double() for t in (q[0], k[0], cos, sin)))))  # fmt: skip
        c.run("rotary_bwd", shape, {"ours": lambda i: ops.rotary_bwd(q[i], k[i], cos, sin, dim, False)}, moved, "85 us")
        q2, k2 = [t.clone() for t in q], [t.clone() for t in k]
        liger = c.liger and c.liger.LigerRopeFunction
        c.run("rotary_", shape, {
            "ours": lambda i: ops.rotary_(q2[i], k2[i], cos, sin, dim, False),
            "Liger": liger and (lambda i: liger.apply(q[i], k[i], cos, sin)),
        }, moved, "83 us")  # fmt: skip


def memory_of(peers, gradients, *leaves):
    """Bytes over the inputs and their gradients that each call needs at most."""
    found = {name: peer_memory(call, leaves) - gradients for name, call in peers.items() if call}
    print("  MiB over inputs and gradients:", ", ".join(f"{n} {m / 2**20:.0f}" for n, m in found.items()), flush=True)
    return found


def losses(c):
    F, loss, vocab = torch.nn.functional, c.ops["loss"], 128256
    options, L = (-100, 0.0, 0.0, 0.0, "mean"), c.liger
    if c.wants("cross_entropy_fwd_"):
        rows = 8192
        target, one = torch.randint(0, vocab, (rows,), device="cuda"), torch.ones((), device="cuda")
        z = (torch.randn(rows, vocab, device="cuda") * 3).bfloat16()
        leaf = z.clone().requires_grad_()

        def both(fn):
            def call(_):
                leaf.grad = None
                fn(leaf).backward()

            return call

        def out_of_place(_):
            lse = loss.cross_entropy_fwd(leaf.detach(), target, *options)[1]
            loss.cross_entropy_bwd(one, leaf.detach(), target, lse, *options)

        plain = lambda z: F.cross_entropy(z.float(), target)
        peers = {"ours": out_of_place, "torch": both(lambda z: F.cross_entropy(z, target)),
                 "torch.compile": both(c.compiled(plain))}  # fmt: skip
        c.run("cross_entropy_fwd_bwd", f"{rows}x{vocab}", peers, 3 * z.nbytes, "1450 us",
              memory=memory_of(peers, z.nbytes, leaf))  # fmt: skip
        # Ours and Liger's put the gradient where the logits were: from the second call on those are small numbers.
        peers = {
            "ours": lambda i: loss.cross_entropy_fwd_(z, target, *options),
            "transformers": both(plain),
            "Liger": L and both(lambda z: L.LigerCrossEntropyFunction.apply(z, target, None)[0]),
        }
        c.run("cross_entropy_fwd_", f"{rows}x{vocab}", peers, 2 * z.nbytes, "1300 us", memory=memory_of(peers, 0, leaf))
        del z, leaf, peers
        torch.cuda.empty_cache()
    for rows in (4096, 8192, 16384, 32768):
        if c.wants("linear_cross_entropy"):
            linear_cross_entropy(c, rows, 4096, vocab, options)
            torch.cuda.empty_cache()


def linear_cross_entropy(c, rows, dim, vocab, options):
    F, loss, L = torch.nn.functional, c.ops["loss"], c.liger
    target = torch.randint(0, vocab, (rows,), device="cuda")
    h = torch.randn(rows, dim, device="cuda").bfloat16().requires_grad_()
    w = (torch.randn(vocab, dim, device="cuda") / 64).bfloat16().requires_grad_()

    def both(fn):
        def call(_):
            h.grad = w.grad = None
            fn().backward()

        return call

    def ours(chunk_bytes):
        return lambda i: loss.linear_cross_entropy_fwd(
            h.detach(), w.detach(), None, target, *options, False, chunk_bytes
        )

    peers = {"ours": ours(0), "ours, 64 MiB": ours(64 << 20)}
    if rows == 8192:
        peers["transformers"] = both(lambda: F.cross_entropy(F.linear(h, w).float(), target))
    if L:
        peers["Liger"] = both(lambda: L.LigerFusedLinearCrossEntropyFunction.apply(h, w, target)[0])
    wanted = {4096: "21500 us", 8192: "41000 us", 16384: "80000 us", 32768: "165000 us"}[rows]
    c.run("linear_cross_entropy_fwd", f"{rows}x{dim}x{vocab}", peers, target=wanted,
          memory=memory_of(peers, (h.numel() + w.numel()) * 2, h, w))  # fmt: skip


def calls(c):
    """What one call costs its caller: the host's clock, the GPU keeping up."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    if not c.wants("call"):
        return
    norm, x = c.ops["norm"].rms_norm.default, torch.randn(1, 2048, device="cuda").bfloat16()
    w = torch.ones(2048, device="cuda").bfloat16()
    layer, module = LlamaRMSNorm(2048).cuda().bfloat16(), torch.nn.RMSNorm(2048, device="cuda", dtype=torch.bfloat16)
    peers = {
        "ours": lambda: norm(x, w, EPS, 0.0, "llama"),
        "torch": lambda: module(x),
        "transformers": lambda: layer(x),
        "Liger": c.liger and (lambda: c.liger.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False)),
    }
    with torch.no_grad():
        times = {name: c.timer.host_microseconds(call) for name, call in peers.items() if call}
    ours = times.pop("ours")
    print("a call, rms_norm 1x2048: ours", f"{ours:.1f} us;", "; ".join(f"{n} {t:.1f} us" for n, t in times.items()))
    for name, us in times.items():
        c.rows.append(
            dict(kind="call", what="rms_norm from Python", shape="1x2048", dtype="bfloat16", ours=f"{ours:.3f}",
                 peer=f"{us:.3f}", peer_name=c.names.get(name, name), unit="us", ratio=f"{us / ours:.3f}", target="15 us")
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--only", type=lambda s: s.split(","), default=[], help="ops whose names hold one of these")
    parser.add_argument("--csv", type=Path, help="append the rows here")
    parser.add_argument("--date", default="")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("wanted a GPU; got none that torch can use")
    torch.manual_seed(0)
    cases = Cases(args, load_packages(args.packages), Timer(SETS))
    for part in (calls, norms, activations, rotary, losses):
        part(cases)
        torch.cuda.empty_cache()
    if args.csv:
        version = torch.__version__.split("+")[0]
        common = dict(date=args.date, commit=args.commit, machine=torch.cuda.get_device_name(), torch=version)
        with open(args.csv, "a", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
            writer.writerows({**common, **row} for row in cases.rows)


if __name__ == "__main__":
    main()
