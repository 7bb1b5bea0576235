"""import hotswap, kernelize, unkernelize, report, kernel_config."""

import copy

import pytest
import torch
from kernels import Mode
from tiny import Calls, batch, close, gradients, model, same_gradients, twin
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import hotswap
from hotswap.core import agree
from hotswap.core.packages import packages_folder


def test_names():
    assert {"kernelize", "unkernelize", "report", "kernel_config"} <= set(dir(hotswap))
    with pytest.raises(AttributeError, match="no attribute 'kernelise'"):
        hotswap.kernelise


def test_report_tells_what_runs_and_how_often():
    swapped = twin(model())
    with torch.no_grad():
        swapped(**batch())
    told = hotswap.report(swapped)
    of_a_gpu = {"AddRMSNorm"} if torch.get_default_device().type == "cuda" else set()
    bound = [row for row in told.rows if row.package]
    assert {row.layer for row in bound} == {"RMSNorm", "rotary_pos_emb", "SwiGLUMLP", "ForCausalLMLoss"} | of_a_gpu
    assert all(row.version == 1 and "torch-stable-abi" in row.variant for row in bound)
    stock = {row.layer: row.why for row in told.rows if not row.package}
    assert all(row.by_choice for row in told.rows if not row.package)
    assert stock["Linear"] == "torch's own product" and stock["SiLU"] == "part of SwiGLUMLP, which is bound"
    assert {op: n for op, n in told.calls.items() if n} == {
        "norm.rms_norm": 5, "rotary.rotary": 2, "mlp.swiglu": 2, "loss.cross_entropy_fwd": 1
    }  # fmt: skip
    assert "RMSNorm" in str(told) and "norm.rms_norm" in str(told)
    swapped.model.norm.forward = lambda x: x  # somebody else's
    row = next(r for r in hotswap.report(swapped).rows if r.name == "model.norm")
    assert row.package is None and row.why.startswith("it has a forward of its own")


def test_a_package_for_the_cpu_alone_leaves_a_model_on_a_gpu(monkeypatch):
    """Its activations too, which have no parameters to say where they are."""
    if any("-cpu-" not in place.name for place in packages_folder().glob("*/build/torch-*")):
        pytest.skip("packages have GPU kernels here")
    monkeypatch.setattr("hotswap.swap.plan.devices_of", lambda module: {"cuda" for _ in module.parameters()})
    m = twin(model())
    assert all(row.package is None for row in hotswap.report(m).rows)
    assert type(m.model.layers[0].mlp.act_fn).forward is m.model.layers[0].mlp.act_fn.forward.__func__


def test_options_choose_the_layers():
    stock = model()
    for options, ops in (
        (dict(rms_norm=False), {"rotary.rotary", "mlp.swiglu", "loss.cross_entropy_fwd"}),
        (dict(rope=False, cross_entropy=False), {"norm.rms_norm", "mlp.swiglu"}),
        (dict(mlp=False), {"norm.rms_norm", "rotary.rotary", "activation.silu", "loss.cross_entropy_fwd"}),
        (dict(mlp=False, activation=False, rope=False, rms_norm=False, cross_entropy=False), set()),
    ):
        swapped = twin(stock, **options)
        with torch.no_grad(), Calls() as calls:
            swapped(**batch())
        assert set(calls.made) == ops, options
    with pytest.raises(TypeError, match="rmsnorm"):
        hotswap.kernelize(stock, rmsnorm=True)


def test_kernelize_again_is_the_last_state():
    swapped = twin(model())
    hotswap.kernelize(swapped, rms_norm=False)
    with torch.no_grad(), Calls() as calls:
        swapped(**batch())
    assert "norm.rms_norm" not in calls.made and calls.made["mlp.swiglu"] == 2


def test_modes():
    stock = model()
    for mode in (Mode.INFERENCE, Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE, "training|torch_compile"):
        assert hotswap.report(hotswap.kernelize(stock, mode=mode)).rows[0].package
    for mode in (Mode.TORCH_COMPILE, "fast"):
        with pytest.raises(ValueError, match="expected a mode"):
            hotswap.kernelize(stock, mode=mode)


class ScaledRMSNorm(LlamaRMSNorm):  # looks like ours, and is not
    def forward(self, hidden_states):
        return 2 * super().forward(hidden_states)


def test_a_layer_that_computes_something_else_stays_stock():
    stock = model()
    odd = ScaledRMSNorm(32)
    stock.model.layers[1].input_layernorm = odd
    swapped = twin(stock)
    with torch.no_grad(), Calls() as calls:
        got = swapped(**batch()).logits
    assert calls.made["norm.rms_norm"] == 4
    close(got, stock(**batch()).logits)
    row = next(r for r in hotswap.report(swapped).rows if r.name == "model.layers.1.input_layernorm")
    assert row.package is None and "ScaledRMSNorm computes something else" in row.why
    with pytest.raises(RuntimeError, match=r"strict.*model.layers.1.input_layernorm \(ScaledRMSNorm\)"):
        hotswap.kernelize(copy.deepcopy(stock), strict=True)


class MultipliedMLP(nn.Module):  # ours while the multiplier is one
    def __init__(self, multiplier):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(8, 8) for _ in range(3))
        self.act_fn, self.multiplier = nn.SiLU(), multiplier

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * self.multiplier


class LimitedMLP(MultipliedMLP):  # ours while no gate is over the limit
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=self.multiplier)) * self.up_proj(x))


def test_a_limit_far_out_counts():
    for layer in (LimitedMLP(500.0), ACT2FN["gelu_10"]):
        assert not any(row.package for row in hotswap.report(hotswap.kernelize(layer)).rows if row.name == "")
    assert hotswap.report(hotswap.kernelize(ACT2FN["gelu"])).rows[0].package == "activation"


@pytest.mark.parametrize("multiplier, bound", [(1.0, True), (0.5, False), (1.0, True)])
def test_settings_of_an_instance_count(multiplier, bound):
    layer = hotswap.kernelize(MultipliedMLP(multiplier), activation=False)
    assert (hotswap.report(layer).rows[0].package == "mlp") == bound


def test_the_environment_switches_everything_off(monkeypatch):
    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    with torch.no_grad(), Calls() as calls:
        twin(model())(**batch())
    assert calls.made == {}


def test_deepcopy_uses_the_copys_weights():
    swapped = twin(model())
    other = copy.deepcopy(swapped)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
        want = hotswap.unkernelize(copy.deepcopy(other))(**batch()).logits
        with Calls() as calls:
            close(other(**batch()).logits, want)
    assert calls.made["norm.rms_norm"] == 5


def test_other_models_of_the_class_stay_stock():
    stock = model()
    twin(stock)
    with torch.no_grad(), Calls() as calls:
        stock(**batch())
    assert calls.made == {}


def test_made_on_meta_in_half_precision_under_autocast():
    agree._known.clear()
    state = torch.random.get_rng_state()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
            layer = hotswap.kernelize(LlamaRMSNorm(8))
    finally:
        torch.set_default_dtype(torch.float32)
    assert hotswap.report(layer).rows[0].package == "norm"
    assert torch.equal(torch.random.get_rng_state(), state)


def test_layer_norm_and_activations_of_torch():
    stock = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.LayerNorm(8, bias=False))
    swapped = hotswap.kernelize(copy.deepcopy(stock))
    x, w = torch.randn(5, 8), torch.randn(5, 8)
    with Calls() as calls:
        got = gradients(swapped, (swapped(x) * w).sum())
    same_gradients(got, gradients(stock, (stock(x) * w).sum()))
    want = {"activation.gelu": 1, "activation.gelu_tanh": 1, "activation.silu": 1, "norm.layer_norm_fwd": 2}
    assert {op: n for op, n in calls.made.items() if not op.endswith("_bwd")} == want


def test_kernel_config_through_every_switch(tmp_path):
    stock = model("gemma2")
    stock.save_pretrained(tmp_path)
    for family_options in ({}, {"fused_linear_cross_entropy": True, "rms_norm": False}):
        config = hotswap.kernel_config(**family_options)
        swapped = AutoModelForCausalLM.from_pretrained(tmp_path, use_kernels=True, kernel_config=config)
        assert not swapped.training
        for training in (False, True, False, True):
            swapped.train(training), stock.train(training)
            with torch.set_grad_enabled(training), Calls() as calls:
                got = swapped(**batch())
            close(got.loss, stock(**batch()).loss)
            norms = calls.made.get("norm.rms_norm_fwd" if training else "norm.rms_norm", 0)
            assert norms == (0 if family_options else 9)
            assert calls.made["mlp.geglu"] == 2 and calls.made["rotary.rotary"] == 2
            assert (got.logits is None) == (training and bool(family_options))
        hotswap.unkernelize(swapped).eval().train()
        with Calls() as calls:
            swapped(**batch())
        assert calls.made == {}


def test_kernel_config_reaches_what_carries_a_name_for_kernels(tmp_path):
    model().save_pretrained(tmp_path)
    swapped = AutoModelForCausalLM.from_pretrained(tmp_path, use_kernels=True, kernel_config=hotswap.kernel_config())
    for training in (True, False):
        swapped.train(training)
        with torch.set_grad_enabled(training), Calls() as calls:
            swapped(**batch())
        assert calls.made["norm.rms_norm_fwd" if training else "norm.rms_norm"] == 5
    assert {r.layer for r in hotswap.report(swapped).rows if r.package} >= {"RMSNorm", "rotary_pos_emb", "SwiGLUMLP", "ForCausalLMLoss"}
    with pytest.raises(TypeError, match="ropes"):
        hotswap.kernel_config(ropes=True)


def test_one_kernel_config_loads_several_models(tmp_path):
    """A policy and its reference, of one family or of two; each keeps what it has through every switch."""
    config = hotswap.kernel_config({"rotary_pos_emb": ""})
    before = dict(vars(config))
    loaded = []
    for family in ("llama", "llama", "mixtral"):
        model(family).save_pretrained(tmp_path / family)
        loaded.append(AutoModelForCausalLM.from_pretrained(tmp_path / family, use_kernels=True, kernel_config=config))
    assert vars(config) == before and len({id(m.kernel_config) for m in loaded}) == 3
    for m in loaded:
        for training in (True, False):
            m.train(training)
            with torch.set_grad_enabled(training), Calls() as calls:
                m(**batch())
            assert calls.made["norm.rms_norm_fwd" if training else "norm.rms_norm"] == 5
            assert not any(op.startswith("rotary.") for op in calls.made)


def test_set_use_kernels_on_a_model_that_is_there():
    stock = model("gpt_oss")
    swapped = copy.deepcopy(stock)
    swapped.train().set_use_kernels(True, hotswap.kernel_config())
    for training in (True, False):
        swapped.train(training)
        with torch.set_grad_enabled(training), Calls() as calls:
            close(swapped(**batch()).loss, stock(**batch()).loss)
        assert calls.made["norm.rms_norm_fwd" if training else "norm.rms_norm"] == 5
        assert calls.made["rotary.rotary"] == 2


def test_hooks_of_accelerate_stay():
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    seen = []

    class Hook(ModelHook):
        def pre_forward(self, module, *args, **kwargs):
            seen.append(type(module).__name__)
            return args, kwargs

    stock = model()
    want = stock(**batch()).logits
    for module in (stock.model.norm, stock.model.layers[0].mlp, stock.model.layers[0].self_attn):
        add_hook_to_module(module, Hook())
    hotswap.kernelize(stock, strict=True)
    with torch.no_grad(), Calls() as calls:
        close(stock(**batch()).logits, want)
    assert calls.made["norm.rms_norm"] == 5 and calls.made["mlp.swiglu"] == 2 and calls.made["rotary.rotary"] == 2
    assert sorted(seen) == ["LlamaAttention", "LlamaMLP", "LlamaRMSNorm"]
    hotswap.unkernelize(stock)
    with Calls() as calls:
        stock(**batch())
    assert calls.made == {} and len(seen) == 6
    remove_hook_from_module(stock.model.norm)


def test_report_sees_what_kernels_itself_bound():
    from pathlib import Path

    from kernels import LocalLayerRepository, kernelize, use_kernel_mapping

    from hotswap.core.packages import package, packages_folder

    place = Path(packages_folder() / "norm" / "build" / package("norm").variant)
    stock = model("gpt_oss")
    with use_kernel_mapping({"RMSNorm": {"cpu": LocalLayerRepository(place, layer_name="RMSNorm")}}, inherit_mapping=False):
        kernelize(stock, mode=Mode.INFERENCE, device="cpu")
    rows = [r for r in hotswap.report(stock).rows if "norm" in r.name and r.layer != "AddRMSNorm"]
    assert len(rows) == 5 and all(r.package == package("norm").id and r.layer == "RMSNorm" for r in rows)
    assert package("norm").id in str(hotswap.report(stock))
    hotswap.unkernelize(stock)
    assert all(r.package is None for r in hotswap.report(stock).rows)


def test_saved_weights_are_the_stock_ones(tmp_path):
    stock = model()
    twin(stock, fused_linear_cross_entropy=True).save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for (a, p), (b, q) in zip(stock.state_dict().items(), again.state_dict().items(), strict=True):
        assert a == b and torch.equal(p, q)


def test_missing_packages_are_told(monkeypatch, tmp_path):
    from hotswap.core import packages

    monkeypatch.setenv("HOTSWAP_PACKAGES", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="expected a folder of built kernel packages"):
        packages.packages_folder()
    (tmp_path / "norm/build/torch-stable-abi299-cpu-x86_64-linux").mkdir(parents=True)
    monkeypatch.setenv("HOTSWAP_PACKAGES", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="wants torch 2.99"):
        packages._found("norm")


def test_variants():
    from pathlib import Path

    from hotswap.core.packages import Variant

    have = tuple(int(n) for n in torch.__version__.split(".")[:2])
    fits = Variant(Path(), (2, 10), None, "x86_64")
    assert fits.why_not() is None
    assert "for aarch64" in fits._replace(machine="aarch64").why_not()
    assert "wants torch" in fits._replace(abi=(have[0], have[1] + 1)).why_not()
    cuda = tuple(int(n) for n in (torch.version.cuda or "13.0").split(".")[:2])
    for other in ((cuda[0] - 1, 0), (cuda[0], cuda[1] + 1)):
        assert "for CUDA" in fits._replace(cuda=other).why_not()
    assert (fits._replace(cuda=cuda).why_not() is None) == (torch.version.cuda is not None)


def test_one_copy_with_kernels_own_loader():
    from pathlib import Path

    from kernels import get_local_kernel

    from hotswap.core.packages import package, packages_folder

    ours = package("norm")
    theirs = get_local_kernel(Path(packages_folder() / "norm" / "build" / ours.variant))
    assert theirs.layers is ours.module.layers
    with torch.no_grad(), Calls() as calls:
        theirs.layers.RMSNorm.forward(LlamaRMSNorm(8), torch.randn(2, 8))
    assert calls.made == {"norm.rms_norm": 1}
