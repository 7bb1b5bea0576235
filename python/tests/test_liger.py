"""Liger's names: whole models, Trainer, and modules and functions with their options, each against plain torch."""

import copy
import importlib.util
import inspect
import subprocess
import sys

import pytest
import torch
from test_families import LAYERS, mlp_backward
from test_vision import FAMILIES as VISION
from tiny import FAMILIES, NAMED, NOT_LIGERS, Calls, batch, close, model, same_step
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, LlamaConfig

import hotswap
from hotswap import liger


@pytest.fixture
def classes():
    yield
    liger.restore_classes()


def test_every_family_has_its_name_and_options():
    assert set(liger.FAMILIES) == set(FAMILIES) - NOT_LIGERS | set(VISION) | {"pixtral"}  # which has no loss
    apply = hotswap.apply_liger_kernel_to_llama
    assert {n: p.default for n, p in inspect.signature(apply).parameters.items()} == {
        "rope": True, "cross_entropy": False, "fused_linear_cross_entropy": True, "rms_norm": True, "swiglu": True, "model": None
    }  # fmt: skip
    assert inspect.signature(hotswap.apply_liger_kernel_to_granite).parameters["cross_entropy"].default is True
    with pytest.raises(TypeError, match="llama: wanted options of rope.*got geglu"):
        apply(geglu=True)
    with pytest.raises(ValueError, match="got both"):
        apply(cross_entropy=True, fused_linear_cross_entropy=True)
    for family, option in (("gpt_oss", "swiglu"), ("deepseek_v4", "swiglu"), ("gemma4", "rope"), ("nemotron", "relu_squared")):
        with pytest.raises(NotImplementedError, match=f"{family}: wanted {option}=False"):
            getattr(hotswap, f"apply_liger_kernel_to_{family}")(**{option: True})


# by the defaults that Liger gives the family
INSTANCES = {
    "llama": "mlp norm rotary",
    "gemma3_text": "mlp norm rotary",
    "qwen3_moe": "activation mlp norm rotary",
    "glm4": "mlp norm",
    "deepseek_v4": "norm",
    "falcon_h1": "mlp norm rotary",
    "llama4_text": "activation mlp norm rotary",
    "nemotron": "rotary",
}


@pytest.mark.parametrize("family", INSTANCES)
def test_an_instance(family):
    stock, data = model(family), batch()
    swapped = copy.deepcopy(stock)
    getattr(hotswap, f"apply_liger_kernel_to_{family.replace('llama4_text', 'llama4')}")(model=swapped)
    got, made = same_step(swapped.train(), stock.train(), data)
    assert got.logits is None and made["loss.linear_cross_entropy_fwd"] == 1
    assert {op.split(".")[0] for op in made} == {"loss", *INSTANCES[family].split()}


def test_options_of_an_instance():
    stock = model()
    for options, ops in (
        (dict(rope=False), {"norm.rms_norm_fwd", "mlp.swiglu", "loss.linear_cross_entropy_fwd"}),
        (dict(cross_entropy=True, rms_norm=False), {"rotary.rotary", "mlp.swiglu", "loss.cross_entropy_fwd"}),
        (dict(swiglu=False, fused_linear_cross_entropy=False), {"rotary.rotary", "norm.rms_norm_fwd"}),
    ):
        swapped = copy.deepcopy(stock).train()
        hotswap.apply_liger_kernel_to_llama(model=swapped, **options)
        with Calls() as calls:
            swapped(**batch())
        assert set(calls.made) == ops


def test_a_class(classes, tmp_path):
    before = model()
    before.save_pretrained(tmp_path)
    hotswap.apply_liger_kernel_to_llama()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    with Calls() as calls:
        got = loaded(**batch())
    close(got.loss, before(**batch()).loss)
    assert calls.made["norm.rms_norm_fwd"] == 5 and calls.made["loss.linear_cross_entropy_fwd"] == 1
    with Calls() as calls:
        before(**batch())
        model("mistral")(**batch())
    assert calls.made == {}
    hotswap.apply_liger_kernel_to_llama(rms_norm=False)  # the last call counts
    with Calls() as calls:
        model().train()(**batch())
    assert "norm.rms_norm_fwd" not in calls.made and calls.made["rotary.rotary"] == 2
    liger.restore_classes()
    with Calls() as calls:
        model()(**batch())
    assert calls.made == {}


# ---- Trainer ------------------------------------------------------------------------------------------------------

TRAINER = """
import sys, json, torch, hotswap
from transformers import Trainer, TrainingArguments
from tiny import Calls, model
torch.set_num_threads(1)
options = json.loads(sys.argv[1])
data = [dict(input_ids=torch.randint(3, 97, (n,), generator=torch.Generator().manual_seed(n))) for n in range(6, 14)]
data = [dict(d, labels=d["input_ids"]) for d in data for _ in range(2)]
def collate(rows):
    pad = lambda key, value: torch.nn.utils.rnn.pad_sequence([r[key] for r in rows], batch_first=True, padding_value=value)
    return dict(input_ids=pad("input_ids", 0), labels=pad("labels", -100))
def run(how, family):
    kernels, made = how == "liger", model(family)
    if how == "config":  # without Liger's switch: bound in evaluation, trained and evaluated by turns
        made.eval().set_use_kernels(True, hotswap.kernel_config())
    args = TrainingArguments(output_dir=sys.argv[2], max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-2, logging_steps=1, eval_strategy="steps", eval_steps=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, use_liger_kernel=kernels, liger_kernel_config=options if kernels else None)
    trainer = Trainer(made, args, train_dataset=data, eval_dataset=data[:4], data_collator=collate)
    with Calls() as calls:
        trainer.train()
        trainer.evaluate()
    log = trainer.state.log_history
    return [[e[k] for e in log if k in e] for k in ("loss", "eval_loss")], calls.made
families = sys.argv[3:]
results = {family: [*run("stock", family), *run("config", family)] for family in families}
hotswap.enable_for_trainer()
hotswap.enable_for_trainer()
print("RESULT " + json.dumps({family: [*result, *run("liger", family)] for family, result in results.items()}))
"""


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is not None, reason="a real liger_kernel is installed")
@pytest.mark.parametrize(
    "families, options", [(NAMED, None), (["llama"], {"rope": True, "cross_entropy": True, "rms_norm": False, "swiglu": True})]
)
def test_trainer(families, options, tmp_path):
    """With gradient accumulation and evaluation by turns: by kernel_config, and by use_liger_kernel=True."""
    import json

    command = [sys.executable, "-c", TRAINER, json.dumps(options), tmp_path, *families]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = 2 * 2  # of accumulation
    for family, result in json.loads(done.stdout.split("RESULT ")[1]).items():
        stock, none, config, config_calls, ours, calls = result
        assert none == {}
        for a, b in [*zip(stock, ours, strict=True), *zip(stock, config, strict=True)]:
            assert len(a) == len(b) >= 2 and all(abs(x - y) <= 1e-4 * abs(x) for x, y in zip(a, b)), family
        assert stock[0][0] != stock[0][-1]
        norms, rotary, mlps, _ = LAYERS[family]
        for made in (calls, config_calls):
            assert made["rotary.rotary_bwd"] == rotary * steps, family
            assert not mlps or made[mlp_backward(family)] == mlps * steps, family
        assert config_calls["norm.rms_norm_bwd"] == norms * steps, family
        assert config_calls["loss.cross_entropy_bwd"] == steps and config_calls["norm.rms_norm"] > 0, family
        if options:
            assert calls["loss.cross_entropy_bwd"] == steps and "norm.rms_norm_fwd" not in calls
        else:
            assert calls["loss.linear_cross_entropy_fwd"] == steps and calls["norm.rms_norm_bwd"] == norms * steps, family
            assert calls["loss.linear_cross_entropy"] > 0, family  # evaluation without logits


def test_trainer_never_shadows_unasked(tmp_path):
    (tmp_path / "liger_kernel").mkdir()
    (tmp_path / "liger_kernel/__init__.py").write_text("__version__ = '0.8.5'")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import hotswap
try: hotswap.enable_for_trainer()
except RuntimeError as e: assert "got an installed one" in str(e)
else: raise SystemExit("no error")
hotswap.enable_for_trainer(shadow=True)
from liger_kernel.transformers import _apply_liger_kernel_to_instance as f
assert f is hotswap._apply_liger_kernel_to_instance
from liger_kernel.transformers import LigerRMSNorm, apply_liger_kernel_to_llama
assert LigerRMSNorm is hotswap.LigerRMSNorm and apply_liger_kernel_to_llama is hotswap.apply_liger_kernel_to_llama
try: from liger_kernel.transformers import LigerTiledGeluOfTomorrow
except ImportError: pass
else: raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_unknown_options_and_families_are_errors():
    with pytest.raises(TypeError, match="got ropes"):
        hotswap._apply_liger_kernel_to_instance(model=model(), ropes=True)
    other = model()
    other.config.model_type = "bert"
    with pytest.raises(ValueError, match="got bert"):
        hotswap._apply_liger_kernel_to_instance(model=other)


# ---- modules and functions, in float64's light --------------------------------------------------------------------

LIMIT = {torch.float32: 5e-6, torch.bfloat16: 2**-6}
DTYPES = list(LIMIT)


def rms_norm(x, w, eps, offset):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * (w + offset)


def against(ours, wide, inputs):
    """Value and gradients of ours(*inputs) beside wide(*float64 copies)."""
    dtype = inputs[0].dtype
    inputs = [t.requires_grad_() for t in inputs]
    double = [t.detach().double().requires_grad_() for t in inputs]
    got, want = ours(*inputs), wide(*double)
    weight = torch.randn_like(want)
    close(got, want, LIMIT[dtype])
    for g, w in zip(torch.autograd.grad(got, inputs, weight.to(got.dtype)), torch.autograd.grad(want, double, weight)):
        close(g, w, 3 * LIMIT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("casting, offset", [("llama", 0.0), ("gemma", 1.0), ("none", 0.0), ("gemma", 0.0)])
def test_rms_norm(dtype, casting, offset):
    layer = hotswap.LigerRMSNorm(24, eps=1e-5, offset=offset, casting_mode=casting, in_place=False).to(dtype)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 1.5)
    functional = lambda x, w: hotswap.liger_rms_norm(x, w, 1e-5, offset, casting)
    x = torch.randn(3, 5, 24, dtype=dtype)
    assert torch.equal(layer(x), functional(x, layer.weight))
    against(functional, lambda x, w: rms_norm(x, w, 1e-5, offset), [x, layer.weight.detach().clone()])
    with Calls() as calls:
        layer(x).sum().backward()
        with torch.no_grad():
            layer(x)
    assert calls.made == {"norm.rms_norm_fwd": 1, "norm.rms_norm_bwd": 1, "norm.rms_norm": 1}


def test_rms_norm_options():
    assert hotswap.LigerRMSNormForGemma2(4).weight.tolist() == [0.0] * 4
    assert hotswap.LigerRMSNormForGemma3(dim := 4).offset == 1.0 and dim == 4
    for bad in (dict(casting_mode="qwen"), dict(init_fn="twos")):
        with pytest.raises(ValueError, match="wanted"):
            hotswap.LigerRMSNorm(4, **bad)(torch.ones(1, 4))
    with pytest.raises(NotImplementedError, match="elementwise_affine"):
        hotswap.LigerRMSNorm(4, elementwise_affine=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_and_layer_norm(dtype):
    x, r, w = torch.randn(6, 24, dtype=dtype), torch.randn(6, 24, dtype=dtype), torch.rand(24, dtype=dtype) + 0.5
    both = hotswap.liger_fused_add_rms_norm
    against(lambda x, r, w: both(x, r, w, 1e-6)[0], lambda x, r, w: rms_norm(x + r, w, 1e-6, 0), [x, r, w])
    assert torch.equal(both(x, r, w, 1e-6)[1], x + r)
    b = torch.randn(24, dtype=dtype)
    against(
        lambda x, w, b: hotswap.liger_layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (24,), w, b, 1e-5),
        [torch.randn(4, 24, dtype=dtype), w, b],
    )
    layer = hotswap.LigerLayerNorm(24, eps=1e-5, bias=True)
    x = torch.randn(2, 24)
    close(layer(x), F.layer_norm(x, (24,), layer.weight, layer.bias, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated(dtype):
    a, b = torch.randn(3, 7, 40, dtype=dtype), torch.randn(3, 7, 40, dtype=dtype)
    against(hotswap.liger_swiglu, lambda a, b: F.silu(a) * b, [a, b])
    against(hotswap.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, [a.detach(), b.detach()])


@pytest.mark.parametrize("name, act", [("LigerSwiGLUMLP", "silu"), ("LigerGEGLUMLP", "gelu_pytorch_tanh"), ("LigerPhi3SwiGLUMLP", "silu")])
def test_mlp_modules(name, act):
    config = LlamaConfig(hidden_size=16, intermediate_size=24, hidden_act=act, num_attention_heads=2)
    layer, x = getattr(hotswap, name)(config), torch.randn(2, 3, 16)
    if name == "LigerPhi3SwiGLUMLP":
        gate, up = layer.gate_up_proj(x).chunk(2, -1)
    else:
        gate, up = layer.gate_proj(x), layer.up_proj(x)
    close(layer(x), layer.down_proj((F.silu(gate) if act == "silu" else F.gelu(gate, approximate="tanh")) * up), 1e-5)
    config.hidden_act = "relu"
    with pytest.raises(ValueError, match="wanted hidden_act"):
        getattr(hotswap, name)(config)


def test_mlp_of_another_width():
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2)
    assert hotswap.LigerSwiGLUMLP(config, intermediate_size=8).gate_proj.out_features == 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_rope(dtype, unsqueeze_dim, rotary_dim):
    width = rotary_dim or 8
    angle = torch.rand(1, 5, width // 2, dtype=torch.float64) * 6
    angle = torch.cat([angle, angle], -1)
    q, k = torch.randn(2, 4, 5, 8, dtype=dtype), torch.randn(2, 2, 5, 8, dtype=dtype)
    if unsqueeze_dim == 2:
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()

    def wide(x):
        cos, sin = angle.cos().unsqueeze(unsqueeze_dim), angle.sin().unsqueeze(unsqueeze_dim)
        turned, rest = x[..., :width], x[..., width:]
        half = torch.cat([-turned[..., width // 2 :], turned[..., : width // 2]], -1)
        return torch.cat([turned * cos + half * sin, rest], -1)

    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    call = lambda q, k: hotswap.liger_rotary_pos_emb(q, k, cos, sin, None, unsqueeze_dim, rotary_dim)
    against(lambda q: call(q, k)[0], wide, [q])
    against(lambda k: call(q, k)[1], wide, [k])
    with pytest.raises(ValueError, match="unsqueeze_dim"):
        hotswap.liger_rope(q, k, cos, sin, unsqueeze_dim=3)


def targets(rows, vocab, ignore_index=-100):
    t = torch.randint(vocab, (rows,))
    t[::4] = ignore_index
    return t


def wide_cross_entropy(logits, target, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None):
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    rows = F.cross_entropy(logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    valid = target != ignore_index
    rows = rows + torch.where(valid, lse_square_scale * logits.logsumexp(-1) ** 2, 0.0)
    return rows if reduction == "none" else rows.sum() / (valid.sum() if reduction == "mean" else 1)


LOSS_OPTIONS = [
    {},
    dict(reduction="sum"),
    dict(reduction="none"),
    dict(label_smoothing=0.1),
    dict(lse_square_scale=1e-2),
    dict(softcap=5.0),
    dict(ignore_index=3),
    dict(label_smoothing=0.2, lse_square_scale=1e-3, softcap=8.0, reduction="sum"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", LOSS_OPTIONS, ids=str)
def test_cross_entropy(dtype, options):
    target = targets(13, 37, options.get("ignore_index", -100))
    module = hotswap.LigerCrossEntropyLoss(**options)
    against(lambda x: module(x, target), lambda x: wide_cross_entropy(x, target, **options), [2 * torch.randn(13, 37, dtype=dtype)])
    x = torch.randn(13, 37, dtype=dtype)
    assert torch.equal(module(x, target), hotswap.liger_cross_entropy(x, target, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", LOSS_OPTIONS, ids=str)
def test_fused_linear_cross_entropy(dtype, bias, options):
    target = targets(13, 37, options.get("ignore_index", -100))
    module = hotswap.LigerFusedLinearCrossEntropyLoss(**options)
    inputs = [torch.randn(37, 16, dtype=dtype) / 3, torch.randn(13, 16, dtype=dtype)] + [torch.randn(37, dtype=dtype)] * bias
    against(
        lambda w, x, b=None: module(w, x, target, b),
        lambda w, x, b=None: wide_cross_entropy(F.linear(x, w, b), target, **options),
        inputs,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [o for o in LOSS_OPTIONS if o.get("reduction") != "none"], ids=str)
def test_a_head_that_does_not_learn(dtype, options, monkeypatch):
    """Adapters: in chunks, and without a gradient of the head."""
    monkeypatch.setattr(hotswap.load("loss"), "FROZEN_BYTES", 5 * 37 * dtype.itemsize)
    target, module = targets(13, 37, options.get("ignore_index", -100)), hotswap.LigerFusedLinearCrossEntropyLoss(**options)
    weight, bias = torch.randn(37, 16, dtype=dtype) / 3, torch.randn(37, dtype=dtype)
    with Calls() as calls:
        against(
            lambda x: module(weight, x, target, bias),
            lambda x: wide_cross_entropy(F.linear(x, weight.double(), bias.double()), target, **options),
            [torch.randn(13, 16, dtype=dtype)],
        )
    assert calls.made == {"loss.cross_entropy_fwd_": 3}


def test_loss_options_without_an_op_are_errors():
    x, t = torch.randn(3, 5), torch.tensor([0, 1, 2])
    for options in (dict(weight=torch.ones(5)), dict(return_z_loss=True), dict(return_token_accuracy=True)):
        with pytest.raises(NotImplementedError, match=next(iter(options))):
            hotswap.LigerCrossEntropyLoss(**options)(x, t)
    for options in (dict(ce_weight=torch.ones(5)), dict(use_token_scaling=True), dict(accum_dtype=torch.bfloat16)):
        with pytest.raises(NotImplementedError, match=next(iter(options))):
            hotswap.LigerFusedLinearCrossEntropyLoss(**options)(torch.randn(5, 4), torch.randn(3, 4), t)
    for bad in (dict(reduction="max"), dict(softcap=0.0), dict(label_smoothing=2.0)):
        with pytest.raises(ValueError, match="wanted"):
            hotswap.LigerCrossEntropyLoss(**bad)
