"""Deformable attention on a GPU beside torch's grid_sample, and beside the Hub's kernel and a Triton one where they are
given.

    deformable.py --packages build/packages [--hub deformable_detr.so] [--triton FOLDER] [--csv FILE]

N 4, 8 heads of 32 channels, 4 levels of an image of 800 x 1066 pixels (17821 rows), 4 points. Queries: as many as rows,
an encoder's, each at its pixel; and 300, a decoder's, each somewhere. Places:

    uniform    anywhere in the image
    local      from the query's own place, normal, two pixels of the level wide: as a model's offsets are
    clustered  all queries around 16 places of the image, half a pixel wide: long sums in few pixels
    border     within half a pixel of the image's edges: corners outside, samples that give nothing

Milliseconds of a captured graph's call, the median of the turns. Values and gradients are compared with float64's first,
on some of the queries.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
from torch.nn.functional import grid_sample

sys.path.append(str(Path(__file__).resolve().parents[3]))  # where the package bench is
from bench.lib import results  # noqa: E402
from bench.lib.results import Results  # noqa: E402

SIZES = ((100, 134), (50, 67), (25, 34), (13, 17))
N, M, D, L, P = 4, 8, 32, 4, 4
HUB, TRITON = "kernels-community/deformable-detr", "msda-triton"
TARGETS = {("deformable_attention", "uniform Q17821", torch.bfloat16): "0.8 ms",
           ("deformable_attention_bwd", "uniform Q17821", torch.bfloat16): "2.5 ms"}  # fmt: skip
S = sum(height * width for height, width in SIZES)


def centres():
    """Of each pixel of every level, (x, y): [S, 2]."""
    grids = []
    for height, width in SIZES:
        y, x = torch.meshgrid(
            (torch.arange(height, device="cuda") + 0.5) / height, (torch.arange(width, device="cuda") + 0.5) / width, indexing="ij"
        )
        grids.append(torch.stack([x, y], -1).view(-1, 2))
    return torch.cat(grids)


def places(kind, queries):
    pixels = torch.tensor([(width, height) for height, width in SIZES], device="cuda").view(1, 1, 1, L, 1, 2)
    shape = (N, queries, M, L, P, 2)
    if kind == "uniform":
        return torch.rand(shape, device="cuda")
    if kind == "local":
        own = centres() if queries == S else torch.rand(queries, 2, device="cuda")
        return own.view(1, queries, 1, 1, 1, 2) + 2 * torch.randn(shape, device="cuda") / pixels
    if kind == "clustered":
        own = torch.rand(16, 2, device="cuda")[torch.randint(16, (N, queries), device="cuda")]
        return own.view(N, queries, 1, 1, 1, 2) + 0.5 * torch.randn(shape, device="cuda") / pixels
    side = torch.randint(2, (*shape[:-1], 1), device="cuda")
    edge = side + (torch.rand((*shape[:-1], 1), device="cuda") - 0.5) / pixels[..., :1]
    along = torch.rand((*shape[:-1], 1), device="cuda")
    flip = torch.rand((*shape[:-1], 1), device="cuda") < 0.5
    return torch.where(flip, torch.cat([edge, along], -1), torch.cat([along, edge], -1))


def by_grid_sample(value, locations, weights):
    """As transformers has it without a kernel."""
    queries = locations.shape[1]
    grids, taken = 2 * locations - 1, []
    for level, (v, (height, width)) in enumerate(zip(value.split([h * w for h, w in SIZES], 1), SIZES)):
        image = v.flatten(2).transpose(1, 2).reshape(-1, D, height, width)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        taken.append(grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(-1, 1, queries, L * P)
    y = (torch.stack(taken, -2).flatten(-2) * weights).sum(-1)
    return y.view(value.shape[0], M * D, queries).transpose(1, 2).contiguous()


def milliseconds(call, turns=5, calls=5, captured=True):
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    run = lambda: [call() for _ in range(calls)]
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seen = []
    for _ in range(turns):
        begin.record()
        run()
        end.record()
        end.synchronize()
        seen.append(begin.elapsed_time(end) / calls)
    return statistics.median(seen)


class Case:
    def __init__(self, kind, queries, dtype):
        self.name = f"{kind} Q{queries}"
        self.dtype = dtype
        self.shapes = torch.tensor(SIZES, device="cuda")
        rows = self.shapes.prod(1)
        self.starts = rows.cumsum(0) - rows
        torch.manual_seed(0)
        self.value = torch.randn(N, S, M, D, device="cuda", dtype=dtype)
        self.places = places(kind, queries)
        self.weights = torch.randn(N, queries, M, L * P, device="cuda").softmax(-1).view(N, queries, M, L, P)
        self.dy = torch.randn(N, queries, M * D, device="cuda", dtype=dtype)

    def inputs(self):
        return self.value, self.shapes, self.starts, self.places, self.weights

    def reference(self, few):
        """Of these queries of the first image: y, and the gradients of its value, places and weights."""
        wide = [t[:1].double().requires_grad_() for t in (self.value, self.places[:, few], self.weights[:, few])]
        y = by_grid_sample(*wide)
        return [y, *torch.autograd.grad(y, wide, self.dy[:1, few].double())]

    def error(self, ops, backward):
        """On up to 4096 queries from the first to the last: both ways of the ordered gradient are taken."""
        value, shapes, starts, places, weights = self.inputs()
        queries = places.shape[1]
        few = torch.linspace(0, queries - 1, min(queries, 4096), device="cuda").long()
        given = value[:1], shapes, starts, places[:1, few].contiguous(), weights[:1, few].contiguous()
        got = [ops.deformable_attention(*given), *getattr(ops, backward)(self.dy[:1, few].contiguous(), *given)]
        want = self.reference(few)
        # At a pixel's centre the gradient of a place jumps: there float32 may find the place on the other side.
        pixels = torch.tensor([(width, height) for height, width in SIZES], device="cuda").view(1, 1, 1, L, 1, 2)
        within = (given[3] * pixels - 0.5).frac().abs()
        clear = ((within > 1e-3) & (within < 1 - 1e-3)).all(-1, keepdim=True)
        got[2], want[2] = got[2] * clear, want[2] * clear
        return [((g.double() - w).norm() / w.norm()).item() for g, w in zip(got, want, strict=True)]


def load(packages):
    (metadata,) = packages.glob("deformable/build/*-cu*/metadata.json")
    package_id = json.loads(metadata.read_text())["id"]
    torch.ops.load_library(metadata.parent / f"{package_id}.abi3.so")
    return getattr(torch.ops, package_id)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--hub", type=Path, help="the Hub's kernel, built with TORCH_EXTENSION_NAME=hub_deformable")
    parser.add_argument("--triton", type=Path, help="a folder with msda_triton in it")
    parser.add_argument("--kinds", default="uniform,local,clustered,border")
    parser.add_argument("--queries", default=f"{S},300")
    parser.add_argument("--dtypes", default="bfloat16,float32")
    results.add_flags(parser)
    args = parser.parse_args()
    ops = load(args.packages)
    if args.hub:
        torch.ops.load_library(args.hub)
    if args.triton:
        sys.path.insert(0, str(args.triton))
    report = Results(args, results.gpu())

    def row(case, what, ours, **peers):
        for name, peer in peers.items():
            report.add(
                kind="op", what=what, shape=f"N{N} S{S} M{M} D{D} L{L} P{P} {case.name}", dtype=str(case.dtype)[6:],
                ours=ours, peer=peer, peer_name=name, unit="ms", target=TARGETS.get((what, case.name, case.dtype), ""),
            )  # fmt: skip

    for queries in map(int, args.queries.split(",")):
        for kind in args.kinds.split(","):
            for dtype in (getattr(torch, name) for name in args.dtypes.split(",")):
                case = Case(kind, queries, dtype)
                limit = 2e-5 if dtype == torch.float32 else 2**-7
                for backward in ("deformable_attention_bwd", "deformable_attention_bwd_unordered"):
                    errors = case.error(ops, backward)
                    # Places are float32: of a difference of two values they have as many digits as of the sum.
                    if not all(e <= limit * (1, 1, 4, 1)[i] for i, e in enumerate(errors)):
                        raise AssertionError(f"{case.name} {backward}: expected float64's values; got errors {errors}")
                given = case.inputs()
                peers, back = {}, {}
                same = tuple(t.to(dtype) for t in (case.value, case.places, case.weights))
                if args.hub:
                    hub, plain = torch.ops.hub_deformable, (same[0], *given[1:3], *same[1:])
                    peers[HUB] = milliseconds(lambda: hub.ms_deform_attn_forward(*plain, 64))
                    back[HUB] = milliseconds(lambda: hub.ms_deform_attn_backward(*plain, case.dy, 64))
                leaves = [t.clone().requires_grad_() for t in same]
                with torch.no_grad():
                    peers["torch grid_sample"] = milliseconds(lambda: by_grid_sample(*leaves), calls=2)
                y = by_grid_sample(*leaves)
                back["torch grid_sample"] = milliseconds(
                    lambda: torch.autograd.grad(y, leaves, case.dy, retain_graph=True), calls=2, captured=False
                )
                del y
                if args.triton:
                    try:
                        peers[TRITON], back[TRITON] = by_triton(case, leaves)
                    except Exception as e:  # another torch or Triton than it was made for
                        print(f"triton: {type(e).__name__}: {str(e)[:120]}", flush=True)
                row(case, "deformable_attention", milliseconds(lambda: ops.deformable_attention(*given)), **peers)
                ordered = milliseconds(lambda: ops.deformable_attention_bwd(case.dy, *given))
                back["ours, unordered"] = milliseconds(lambda: ops.deformable_attention_bwd_unordered(case.dy, *given))
                row(case, "deformable_attention_bwd", ordered, **back)
    report.write()


def by_triton(case, leaves):
    # Its other function takes torch's grid_sample where this one fails.
    from msda_triton.frontend import triton_multiscale_deformable_attention as attend

    call = lambda: attend(leaves[0], case.shapes, leaves[1], leaves[2], "zeros", False)
    with torch.no_grad():
        forward = milliseconds(call, captured=False)
    y = call()
    dy = case.dy.view(y.shape)
    return forward, milliseconds(lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True), captured=False)


if __name__ == "__main__":
    main()
