"""Every name of Liger 0.8.5 (liger_names.json: its arguments, in their order, with their defaults) is here with these arguments, or
can be imported and says by an error that there is no such op."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hotswap
from hotswap.liger import chunked_loss, functional as liger_functional, lacks as liger_lacks, ops as liger_ops, places as liger_places

NAMES = json.loads((Path(__file__).parent / "liger_names.json").read_text())
LACKING = {*liger_lacks.__all__, *(f"Liger{name}Function" for name in liger_lacks.OPS.split())}


def text(function, first=0) -> str:
    """As liger_names.json has it: a, b=1, kw:c=None, **d"""
    mark = {inspect.Parameter.KEYWORD_ONLY: "kw:", inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    parameters = list(inspect.signature(function).parameters.values())[first:]
    return ", ".join(
        mark.get(p.kind, "") + p.name + ("" if p.default is p.empty else f"={p.default!r}") for p in parameters
    )


def found(name, module):
    return getattr(liger_places.place_of(name, liger_places.PLACES[module]), name)


@pytest.mark.parametrize("name", NAMES["ops"])
def test_ops(name):
    function = found(name, "liger_kernel.ops")
    assert issubclass(function, torch.autograd.Function)
    if name in LACKING:
        with pytest.raises(NotImplementedError, match=name):
            function.apply(torch.zeros(2))
    else:
        assert text(function.forward, 1) == text(function.apply) == NAMES["ops"][name]


@pytest.mark.parametrize("name", NAMES["functional"])
def test_functional(name):
    assert text(found(name, "liger_kernel.functional")) == NAMES["functional"][name]


def accepts(ours: str, liger: str) -> bool:
    """All of Liger's arguments, in its order; ours may take more behind them."""
    return ours == liger or ours.startswith(f"{liger}, ")


@pytest.mark.parametrize("name", sorted(set(NAMES["transformers"]) - {"CrossEntropyOutput"}))
def test_functional_of_transformers(name):
    function = found(name, "liger_kernel.transformers.functional")
    if name in LACKING:
        with pytest.raises(NotImplementedError, match=name):
            function(torch.zeros(2), eps=1)
    else:
        assert accepts(text(function), NAMES["transformers"][name])


@pytest.fixture(scope="module")
def of_files():
    """What each file of Liger's has for a program that imports from it: {file: {name: does it have it}}."""
    code = (
        "import importlib, json, sys, hotswap\n"
        "hotswap.enable_for_trainer(shadow=True)\n"
        "has = lambda file, name: hasattr(importlib.import_module(file), name)\n"
        "print(json.dumps({f: {n: has(f, n) for n in names.split()} for f, names in json.load(sys.stdin).items()}))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], input=json.dumps(NAMES["files"]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("file", NAMES["files"])
def test_names_of_a_file(of_files, file):
    """Classes and functions, those without an op too: importing them is no error, using them is."""
    assert [name for name, there in of_files[file].items() if not there] == []


def fits(ours: str, liger: str) -> bool:
    """Liger's arguments by position and by name, with its defaults; in_place changes nothing, and ours may have more."""
    mine, its = ([] if not text else [a.split("=") for a in text.split(", ")] for text in (ours, liger))
    same = lambda a, b: a[0] == b[0] and (len(b) == 1 or a[0] == "in_place" or a == b)  # noqa: E731
    return len(mine) >= len(its) and all(map(same, mine, its)) and all("=" in "=".join(a) or a[0][0] == "*" for a in mine[len(its) :])


@pytest.mark.parametrize("name", NAMES["classes"])
def test_classes(name):
    module = "liger_kernel.chunked_loss" if name.startswith("LigerFusedLinear") and name not in NAMES["exported"] else "liger_kernel.transformers"
    made = found(name, module)
    if name in LACKING:
        with pytest.raises(NotImplementedError, match=name):
            made(8)
        return
    for method, arguments in NAMES["classes"][name].items():
        is_function = issubclass(made, torch.autograd.Function)
        ours = text(getattr(made, method), 0 if is_function else 1)
        assert not arguments or fits(ours, arguments), f"{method}: {ours}"


def test_exported():
    assert found("is_transformers_available", "liger_kernel.transformers")()
    assert hotswap.LigerFusedLinearJSDFunction is liger_ops.LigerFusedLinearJSDFunction is not chunked_loss.LigerFusedLinearJSDFunction
    for key, module in (("exported", "liger_kernel.transformers"), ("chunked_loss", "liger_kernel.chunked_loss")):
        for name in NAMES[key]:
            assert found(name, module), name
    with pytest.raises(NotImplementedError, match="LigerPolyNorm"):
        hotswap.LigerPolyNorm()
    assert {n for n in NAMES["exported"] if n in LACKING} == {
        "LigerFusedCETVDLoss", "LigerFusedLinearKLDivLoss", "LigerMHC", "LigerModulatedRMSNorm", "LigerMultiTokenAttention",
        "LigerPolyNorm", "LigerVocabParallelCrossEntropy",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES["families"])
def test_families_take_their_options_in_a_row(name):
    function = getattr(hotswap, name)
    assert text(function) == NAMES["families"][name].removesuffix(", **kwargs")
    with pytest.raises(TypeError, match="expected one value for each"):
        function(*[None] * 20)
    first = next(iter(inspect.signature(function).parameters))
    with pytest.raises(TypeError, match="pass each once"):
        function(False, **{first: False})


def test_modules_are_attributes():
    code = "import hotswap; print(hotswap.grpo.__name__, hotswap.chunked_loss.__name__, hotswap.head.CHUNK_BYTES['cpu'], " \
           "hotswap.mamba.__name__, hotswap.liger.__name__)"  # fmt: skip
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout == "hotswap.liger.grpo hotswap.liger.chunked_loss 67108864 hotswap.mamba hotswap.liger\n", done.stderr


def test_imports_of_a_program_of_ligers():
    code = (
        "import hotswap; hotswap.enable_for_trainer(shadow=True)\n"
        "from liger_kernel.ops import LigerRMSNormFunction, LigerPolyNormFunction\n"
        "from liger_kernel.ops.rope import LigerRopeFunction\n"
        "from liger_kernel.functional import rms_norm\n"
        "import liger_kernel.functional as LF\n"
        "from liger_kernel.transformers.functional import liger_rms_norm, liger_attn_res\n"
        "from liger_kernel.transformers import apply_liger_kernel_to_llama, LigerPolyNorm\n"
        "assert LF.rms_norm is rms_norm\n"
        "print(LigerRMSNormFunction.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.stdout == "LigerRMSNormFunction\n", done.stderr


# ---- what they compute: each function beside plain torch, gradients too ------------------------------------------------


def turn(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def rms(x, w, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


X, Y, W, B = (torch.randn(*shape) for shape in ((6, 16), (6, 16), (16,), (16,)))
T = torch.tensor([1, 2, -100, 3, 0, 5])
HEAD, GATE, UP, DOWN = (torch.randn(*shape) for shape in ((9, 16), (8, 16), (8, 16), (16, 8)))
ANGLE = torch.randn(1, 5, 4).repeat(1, 1, 2)
Q = torch.randn(1, 2, 5, 8)
op, f = (lambda name: getattr(liger_ops, f"Liger{name}Function").apply), liger_functional
CASES = {
    "RMSNorm": (lambda x: op("RMSNorm")(x, W, 1e-6), lambda x: rms(x, W)),
    "rms_norm": (lambda x: f.rms_norm(x, W, impl="nvidia-triton"), lambda x: rms(x, W)),
    "FusedAddRMSNorm": (lambda x: op("FusedAddRMSNorm")(x, Y, W, 1e-6)[0], lambda x: rms(x + Y, W)),
    "fused_add_rms_norm": (lambda x: f.fused_add_rms_norm(x, Y, W)[1], lambda x: x + Y),
    "LayerNorm": (lambda x: op("LayerNorm")(x, W, B, 1e-6), lambda x: F.layer_norm(x, (16,), W, B, 1e-6)),
    "layer_norm": (lambda x: f.layer_norm(x, W, B), lambda x: F.layer_norm(x, (16,), W, B, 1e-6)),
    "GroupNorm": (
        lambda x: op("GroupNorm")(x.view(2, 4, 12), W[:4], B[:4], 4, 2, 1e-6),
        lambda x: F.group_norm(x.view(2, 4, 12), 2, W[:4], B[:4], 1e-6),
    ),
    "DyT": (lambda x: op("DyT")(x, W[:1], W, B), lambda x: torch.tanh(W[:1] * x) * W + B),
    "GELUMul": (lambda x: op("GELUMul")(x, Y), lambda x: F.gelu(x, approximate="tanh") * Y),
    "geglu": (lambda x: f.geglu(x, Y), lambda x: F.gelu(x, approximate="tanh") * Y),
    "SiLUMul": (lambda x: op("SiLUMul")(x, Y, 0.5, 2.0), lambda x: F.silu(x * 0.5) * Y * 2.0),
    "swiglu": (lambda x: f.swiglu(x, Y), lambda x: F.silu(x) * Y),
    "FusedGateUpSiLUMul": (lambda x: op("FusedGateUpSiLUMul")(x), lambda x: F.silu(x[:, :8]) * x[:, 8:]),
    "ReLUSquared": (lambda x: op("ReLUSquared")(x), lambda x: F.relu(x).square()),
    "MLP": (
        lambda x: op("MLP")(x, GATE, UP, DOWN, 0.5, 2.0),
        lambda x: (F.silu(x @ GATE.T * 0.5) * (x @ UP.T)) @ DOWN.T * 2.0,
    ),
    "FusedMoE": (
        lambda x: op("FusedMoE")(x, torch.cat([GATE, UP])[None], DOWN[None], T.clamp(0, 0)[:, None], torch.ones(6, 1)),
        lambda x: (F.silu(x @ GATE.T) * (x @ UP.T)) @ DOWN.T,
    ),
    "TiledMLP": (lambda x: op("TiledMLP")(lambda m, t: m(t), nn.Tanh(), x, 3), torch.tanh),
    "Rope": (lambda x: op("Rope")(Q * x.mean(), Q, ANGLE.cos(), ANGLE.sin())[0], lambda x: turn(Q * x.mean(), ANGLE.cos(), ANGLE.sin())),
    "rope": (lambda x: f.rope(Q * x.mean(), Q, ANGLE.cos(), ANGLE.sin())[0], lambda x: turn(Q * x.mean(), ANGLE.cos(), ANGLE.sin())),
    "Softmax": (lambda x: op("Softmax")(x), lambda x: x.softmax(-1)),
    "softmax": (lambda x: f.softmax(x), lambda x: x.softmax(-1)),
    "KLDivLoss": (
        lambda x: op("KLDivLoss")(x.log_softmax(-1), Y.softmax(-1)),
        lambda x: F.kl_div(x.log_softmax(-1), Y.softmax(-1), reduction="batchmean"),
    ),
    "kl_div": (
        lambda x: f.kl_div(x.log_softmax(-1), Y.softmax(-1)),
        lambda x: F.kl_div(x.log_softmax(-1), Y.softmax(-1), reduction="batchmean"),
    ),
    "TVDLoss": (
        lambda x: op("TVDLoss")(x.softmax(-1), Y.softmax(-1)),
        lambda x: (x.softmax(-1) - Y.softmax(-1)).abs().sum(-1).mean() / 2,
    ),
    "CrossEntropy": (lambda x: op("CrossEntropy")(x, T, None)[0], lambda x: F.cross_entropy(x, T)),
    "cross_entropy": (lambda x: f.cross_entropy(x, T, label_smoothing=0.1)[0], lambda x: F.cross_entropy(x, T, label_smoothing=0.1)),
    "FusedLinearCrossEntropy": (
        lambda x: op("FusedLinearCrossEntropy")(x, HEAD, T)[0],
        lambda x: F.cross_entropy(x @ HEAD.T, T),
    ),
    "fused_linear_cross_entropy": (
        lambda x: f.fused_linear_cross_entropy(x, HEAD, T)[0],
        lambda x: F.cross_entropy(x @ HEAD.T, T),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name):
    ours, plain = CASES[name]
    x = X.clone().requires_grad_()
    got, want = ours(x), plain(x)
    weight = torch.randn_like(want)
    mine = torch.autograd.grad(got, x, weight)[0]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine, torch.autograd.grad(want, x, weight)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("items", [None, 7])
def test_the_loss_of_ligers_forwards(items):
    """LigerForCausalLMLoss: of the next tokens, a forward's other arguments left out."""
    hidden, ids = torch.randn(2, 6, 16).requires_grad_(), torch.randint(0, 9, (2, 6))
    ids[0, :2] = -100
    options = dict(num_items_in_batch=items, final_logit_softcapping=3.0, label_smoothing=0.1, use_cache=False)
    got = hotswap.LigerForCausalLMLoss(hidden, HEAD, ids, 16, **options)
    logits = 3 * torch.tanh((hidden[:, :-1] @ HEAD.T) / 3)
    plain = F.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum" if items else "mean", label_smoothing=0.1
    ) / (items or 1)
    torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
    mine, its = (torch.autograd.grad(loss, hidden)[0] for loss in (got, plain))
    torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
    shifted = F.pad(ids, (0, 1), value=-100)[:, 1:]
    outputs = hotswap.LigerForCausalLMLoss(hidden, HEAD, None, 16, shift_labels=shifted, return_predicted_tokens=True, **options)
    assert torch.equal(outputs.loss, got) and outputs.predicted_tokens.shape == (12,) and outputs.token_accuracy is None


def test_functions_of_chunked_losses():
    names = "CPO CosineSimilarity DPO GRPO JSD KTO ORPO SimPO".split()
    their = dict(zip(names, "cpo cosine dpo grpo jsd kto orpo simpo".split(), strict=True))
    for name in names:
        function = getattr(chunked_loss, f"LigerFusedLinear{name}Function")
        assert function.apply is getattr(chunked_loss, f"liger_fused_linear_{their[name]}"), name


def test_the_same_as_the_functions():
    """Those that plain torch has not in a line."""
    x, y = X.log_softmax(-1), Y.log_softmax(-1)
    assert torch.equal(op("JSD")(x, y), hotswap.liger_jsd(x, y)) and torch.equal(f.jsd(x, y), hotswap.liger_jsd(x, y))
    assert torch.equal(op("Sparsemax")(X, -1), hotswap.liger_sparsemax(X))
    heads = X, HEAD, Y, HEAD.flip(0)
    assert torch.equal(op("FusedLinearJSD")(*heads), hotswap.liger_fused_linear_jsd(*heads))
    assert torch.equal(f.fused_linear_jsd(*heads), hotswap.liger_fused_linear_jsd(*heads))
    pairs = torch.polar(torch.ones(1, 2, 4), torch.randn(1, 2, 4))
    q = torch.randn(1, 2, 3, 8)
    assert torch.equal(op("Llama4Rope")(q, q, pairs)[0], hotswap.liger_llama4_text_rotary_pos_emb(q, q, pairs)[0])
    tables = torch.randn(3, 1, 5, 8)
    got = op("Qwen2VLMRope")(Q, Q, tables.cos(), tables.sin(), [1, 1, 2])[0]
    assert torch.equal(got, hotswap.liger_qwen2vl_mrope(Q, Q, tables.cos(), tables.sin(), [1, 1, 2])[0])
    logits, ids = torch.randn(2, 5, 9), torch.randint(0, 9, (2, 4))
    given = logits, None, torch.randn(2, 4), ids, torch.randn(2), torch.ones(2, 4)
    loss, kl, clipped = liger_ops.GrpoLossFunction.apply(*given, 1.0, 0.04, 0.2, 0.2, False, "dapo")
    want, metrics = hotswap.grpo.triton_grpo_loss(*given, 1.0, 0.04, 0.2, 0.2, False, "dapo", reduce=True)
    assert torch.equal(loss, want) and torch.equal(kl, metrics[0]) and torch.equal(clipped, metrics[1])
    with pytest.raises(NotImplementedError, match="phi_seq"):
        liger_ops.GrpoLossFunction.apply(*given, 1.0, 0.04, 0.2, 0.2, False, phi_seq=X)
