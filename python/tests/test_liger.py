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
from tiny import BASE, FAMILIES, NAMED, NOT_LIGERS, Calls, batch, close, model, same_step
from transformers import AutoModelForCausalLM, BertConfig, MllamaForCausalLM, MllamaTextConfig

import hotswap
from hotswap.liger import families as liger


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
    with pytest.raises(TypeError, match="llama: expected options of rope.*got geglu"):
        apply(geglu=True)
    with pytest.raises(ValueError, match="got both"):
        apply(cross_entropy=True, fused_linear_cross_entropy=True)
    for family, option in (("deepseek_v4", "rope"), ("gemma4", "rope")):
        with pytest.raises(NotImplementedError, match=f"{family}: expected {option}=False"):
            getattr(hotswap, f"apply_liger_kernel_to_{family}")(**{option: True})


# by the defaults that Liger gives the family
INSTANCES = {
    "llama": "mlp norm rotary",
    "gemma3_text": "mlp norm rotary",
    "qwen3_moe": "mlp moe norm rotary",
    "glm4": "mlp norm",
    "deepseek_v4": "norm",
    "falcon_h1": "mlp norm rotary",
    "llama4_text": "mlp moe norm rotary",
    "nemotron": "activation rotary",
}


@pytest.mark.parametrize("family", INSTANCES)
def test_an_instance(family):
    stock, data = model(family), batch()
    swapped = copy.deepcopy(stock)
    getattr(hotswap, f"apply_liger_kernel_to_{family.replace('llama4_text', 'llama4')}")(model=swapped)
    got, made = same_step(swapped.train(), stock.train(), data)
    assert got.logits is None and made["loss.linear_cross_entropy_fwd"] == 1
    assert {op.split(".")[0] for op in made} == {"loss", *INSTANCES[family].split()}


def test_the_text_half_of_mllama():
    torch.manual_seed(0)
    stock = MllamaForCausalLM(MllamaTextConfig(**BASE | dict(num_hidden_layers=3, cross_attention_layers=[1])))
    swapped, data = copy.deepcopy(stock), batch()
    hotswap._apply_liger_kernel_to_instance(model=swapped)
    got, made = same_step(swapped.train(), stock.train(), data)
    assert got.logits is None and made["loss.linear_cross_entropy_fwd"] == 1 and made["mlp.swiglu"] == 2


@pytest.mark.parametrize("key", "llama4_text mllama_text_model qwen2_vl_text qwen2_5_vl_text qwen3_vl_moe_text qwen3_5_moe_text gemma4_text".split())
def test_every_key_of_the_table_has_a_family(key):
    assert liger.MODEL_TYPE_TO_APPLY_LIGER_FN[key].__name__.removeprefix("apply_liger_kernel_to_") in (key, key.rpartition("_text")[0])


SMALL_BERT = dict(vocab_size=BASE["vocab_size"], hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)


def test_a_family_that_a_program_adds_to_the_table(monkeypatch):
    """Is called for an instance with it, and by the Auto class, as Liger's is, before there is one."""
    given = []
    monkeypatch.setitem(liger.MODEL_TYPE_TO_APPLY_LIGER_FN, "bert", lambda rope=True, model=None: given.append((rope, model)))
    hotswap._apply_liger_kernel("bert")
    made = hotswap.AutoLigerKernelForCausalLM.from_config(BertConfig(**SMALL_BERT), rope=False)
    hotswap._apply_liger_kernel_to_instance(made)
    assert given == [(True, None), (False, None), (True, made)]


def test_the_auto_class(tmp_path):
    model().save_pretrained(tmp_path)
    for made in (
        hotswap.AutoLigerKernelForCausalLM.from_pretrained(tmp_path, rope=False, dtype=torch.float32),
        hotswap.AutoLigerKernelForCausalLM.from_config(model().config, rope=False),
    ):
        with Calls() as calls:
            got = made.train()(**batch())
        assert got.logits is None and "rotary.rotary" not in calls.made and calls.made["norm.rms_norm_fwd"] == 5
    with Calls() as calls:  # the class stays as it is
        model()(**batch())
    assert calls.made == {}
    with pytest.warns(UserWarning, match="got 'bert', which stays stock"), Calls() as calls:
        hotswap.AutoLigerKernelForCausalLM.from_config(BertConfig(**SMALL_BERT))(**batch())
    assert calls.made == {}


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
    hotswap._apply_liger_kernel("llama", rms_norm=False)  # the last call counts
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


def test_trainer_may_keep_the_labels_for_its_own_loss():
    """Label smoothing in evaluation: Trainer asks for no logits, and then computes its loss from them."""
    stock, data = model().eval(), batch()
    want = stock(data["input_ids"]).logits
    hotswap._apply_liger_kernel_to_instance(stock)
    with torch.no_grad():
        close(stock(data["input_ids"], skip_logits=True).logits, want, 5e-6)
        assert stock(**data, skip_logits=True).logits is None
    hotswap.unkernelize(stock)
    assert "bound_by_trainer" not in stock.__dict__


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
from liger_kernel.transformers.rms_norm import LigerRMSNormForGemma
from liger_kernel.transformers import AutoLigerKernelForCausalLM, CrossEntropyOutput, _apply_liger_kernel
assert LigerRMSNormForGemma is hotswap.LigerRMSNormForGemma and LigerRMSNorm is hotswap.LigerRMSNorm and apply_liger_kernel_to_llama is hotswap.apply_liger_kernel_to_llama
import inspect, liger_kernel.transformers.monkey_patch as named
from hotswap.liger.families import MODEL_TYPE_TO_APPLY_LIGER_FN as table
functions = {{f for name, f in inspect.getmembers(named, inspect.isfunction) if name.startswith("apply_liger_kernel_to_")}}
assert functions == set(table.values())
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
