"""What an instance is, beside what its class is: attributes that differ or change, functions and implementations that its model names, a
wrapper that copies the attributes of what it wraps. Each is done to a stock model and to a swapped one: outputs and gradients are the same."""

import copy
import functools
import types

import pytest
import torch
import transformers
from test_instances import fresh, ids, same, step
from tiny import BASE, close, model
from torch import nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.moe import ExpertsInterface
from transformers.loss import loss_utils
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama import modeling_llama

import hotswap
from hotswap.generation import decode

FUSED = pytest.mark.parametrize("fused", [False, True])


@pytest.mark.parametrize("by, bound", [("deepspeed.runtime.zero.parameter_offload", True), ("deepspeed.profiling.profiler", False)])
def test_hooks_that_bring_weights_to_a_part_that_has_none(by, bound):
    """ZeRO-3 puts hooks on every module. On an activation they have nothing to bring, and the MLP runs ours."""
    stock = model()
    ours = hotswap.kernelize(copy.deepcopy(stock))

    def hook(module, args):
        called.append(module)

    hook.__module__ = by
    for m in (stock, ours):
        for layer in m.model.layers:
            layer.mlp.act_fn.register_forward_pre_hook(hook)
    called = []
    expected = step(stock)
    called.clear()
    same(step(ours), expected, by)
    assert len(called) == (0 if bound else 2)
    rows = [row for row in hotswap.report(ours).rows if row.layer == "SwiGLUMLP"]
    assert [bool(row.package) for row in rows] == [bound] * 2 and all(bound or row.why == "act_fn has hooks" for row in rows)


# ---- layers of one class with other settings -------------------------------------------------------------------------


class Settings:
    def __init__(self, plus):
        self.plus = plus


class OwnRMSNorm(nn.Module):
    """One class, whose instances compute what they hold: a bias or none, a config, a tuple, a private attribute, the mode."""

    def __init__(self, bias=False, plus=0.0, flags=(), private=0.0, in_evaluation=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))
        self.bias = nn.Parameter(torch.randn(16)) if bias else None
        self.config, self.flags, self._private, self.variance_epsilon = Settings(plus), flags, private, 1e-6
        self.in_evaluation = in_evaluation

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        y = (self.weight + self.config.plus + self._private + ("one" in self.flags)) * x.to(hidden_states.dtype)
        y = y if self.bias is None else y + self.bias
        return y if self.training else y * self.in_evaluation


class OwnMLP(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)
        self.act_fn, self.norm = nn.SiLU(), nn.LayerNorm(24) if norm else None

    def forward(self, x):
        h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(h if self.norm is None else self.norm(h))


PAIRS = {  # the first is ours, and its class is probed first
    "a bias": (lambda: OwnRMSNorm(), lambda: OwnRMSNorm(bias=True)),
    "a config": (lambda: OwnRMSNorm(), lambda: OwnRMSNorm(plus=1.0)),
    "a tuple": (lambda: OwnRMSNorm(), lambda: OwnRMSNorm(flags=("one",))),
    "a private attribute": (lambda: OwnRMSNorm(), lambda: OwnRMSNorm(private=1.0)),
    "the mode": (lambda: OwnRMSNorm(), lambda: OwnRMSNorm(in_evaluation=0.5)),
    "a part": (lambda: OwnMLP(False), lambda: OwnMLP(True)),
}


def packages(m):
    return {row.package for row in hotswap.report(m).rows if row.layer in ("RMSNorm", "SwiGLUMLP", "MLP")}


@pytest.mark.parametrize("what", PAIRS)
def test_layers_of_one_class(what):
    x = torch.randn(2, 3, 16)
    for make, bound in zip(PAIRS[what], (True, False)):
        stock = nn.Sequential(make())
        ours = hotswap.kernelize(copy.deepcopy(stock))
        assert packages(ours) == {("norm" if what != "a part" else "mlp") if bound else None}
        for mode in (True, False):
            close(ours.train(mode)(x), stock.train(mode)(x), 1e-6)


def test_an_attribute_that_is_set_afterwards():
    stock = nn.Sequential(OwnRMSNorm())
    ours, x = hotswap.kernelize(copy.deepcopy(stock)), torch.randn(2, 3, 16)
    for m in (stock, ours):
        m[0]._private = 1.0
    close(ours(x), stock(x), 1e-6)
    assert packages(ours) == {None}


# ---- experts ------------------------------------------------------------------------------------------------------------


def of_experts(m):
    return [part for part in m.modules() if type(part).__name__.endswith("Experts")]


def limit_of_experts(m):
    for part in of_experts(m):
        part.limit = 0.05


def activation_of_experts(m):
    for part in of_experts(m):
        part.act_fn = nn.ReLU()


def hook_on_the_activation(m):
    for part in of_experts(m):
        part.act_fn.register_forward_hook(lambda module, args, y: 2 * y)


def own_gate(m):
    for part in of_experts(m):
        part._apply_gate = lambda h: 2 * h.chunk(2, -1)[0]


def tenth(self, hidden_states, top_k_index, top_k_weights):
    return 0.1 * hidden_states + self.down_proj.sum()


def own_implementation(m):
    ExpertsInterface.register("tenth", tenth)
    m.set_experts_implementation("tenth")


CHANGES = [("gpt_oss", limit_of_experts), ("gpt_oss", own_gate), ("gpt_oss", own_implementation)]
CHANGES += [("qwen3_moe", c) for c in (activation_of_experts, hook_on_the_activation, own_gate, own_implementation)]


@pytest.mark.parametrize("way", ["before", "after", "implementation"])
@pytest.mark.parametrize("family, change", CHANGES, ids=lambda of: getattr(of, "__name__", of))
def test_experts(family, change, way):
    if way == "implementation" and change is own_implementation:
        return
    stock, ours = fresh(family), fresh(family)
    if way == "implementation":
        hotswap.register_experts()
        ours.set_experts_implementation("hotswap")
        if change is own_gate:
            stock.set_experts_implementation("eager")  # ours runs instead of it
        step(ours)
    elif way == "after":
        hotswap.kernelize(ours)
    for m in (stock, ours):
        change(m)
    if way == "before":
        hotswap.kernelize(ours)
    same(step(ours), step(stock), way)
    if change is own_implementation:
        assert any("experts_implementation is tenth" in row.why for row in hotswap.report(ours).rows)


# ---- functions of a model's file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_function_beside_the_one_that_is_ours(order, monkeypatch):
    """The forward of a bound attention is the class's code with one function of ours, and sees all others as they are."""
    stock, ours, eager = fresh("llama"), fresh("llama"), modeling_llama.eager_attention_forward
    for m in (stock, ours):
        m.set_attn_implementation("eager")
    if order == "after":
        hotswap.kernelize(ours)
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", lambda *args, **kwargs: (1.3 * eager(*args, **kwargs)[0], None))
    if order == "before":
        hotswap.kernelize(ours)
    same(step(ours), step(stock), order)


def test_a_mixers_other_functions(monkeypatch):
    from transformers.models.mamba import modeling_mamba

    stock, ours = fresh("mamba"), hotswap.kernelize(fresh("mamba"))
    monkeypatch.setattr(modeling_mamba, "apply_mask_to_padding_states", lambda states, mask: 1.5 * states)
    same(step(ours), step(stock), "mamba")


# ---- losses -------------------------------------------------------------------------------------------------------------


def squares(logits, labels, vocab_size, **kwargs):
    return logits.square().mean()


class WithLossForCausalLM(LlamaForCausalLM):
    @property
    def loss_function(self):
        return squares


@FUSED
def test_a_class_with_a_loss_of_its_own(fused):
    torch.manual_seed(0)
    stock = WithLossForCausalLM(LlamaConfig(**BASE)).train()
    ours = hotswap.kernelize(copy.deepcopy(stock), fused_linear_cross_entropy=fused)
    same(step(ours), step(stock), "a class")
    whys = {row.layer: row.why for row in hotswap.report(ours).rows if row.name == ""}
    assert whys["ForCausalLMLoss"] == "WithLossForCausalLM has a loss_function of its own"


@FUSED
def test_another_loss_for_the_name(fused, monkeypatch):
    stock, ours = fresh("llama"), hotswap.kernelize(fresh("llama"), fused_linear_cross_entropy=fused)
    monkeypatch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", squares)
    same(step(ours), step(stock), "another loss")


def test_another_name_of_the_loss():
    stock, ours = fresh("llama"), hotswap.kernelize(fresh("llama"), fused_linear_cross_entropy=True)
    for m in (stock, ours):
        m.loss_type = "ForMaskedLM"
    same(step(ours), step(stock), "another name")


def test_another_name_of_the_loss_is_in_the_report_and_followed_by_another_kernelize():
    stock, ours = fresh("llama"), hotswap.kernelize(fresh("llama"))
    for m in (stock, ours):
        m.loss_type = "ForMaskedLM"
    (row,) = [row for row in hotswap.report(ours).rows if row.layer == "ForCausalLMLoss"]
    assert row.package == "loss" and row.why.startswith("loss_type became 'ForMaskedLM' after this was bound"), row
    hotswap.kernelize(ours)
    assert not [row for row in hotswap.report(ours).rows if row.layer == "ForCausalLMLoss"]
    same(step(ours), step(stock), "another name")


# ---- wrappers that copy the attributes of what they wrap ----------------------------------------------------------------


@FUSED
def test_autocast_by_accelerate(fused):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    ours, seen = hotswap.kernelize(fresh("llama"), fused_linear_cross_entropy=fused), []
    Accelerator(cpu=True, mixed_precision="bf16").prepare_model(ours)
    AcceleratorState._reset_state(True)
    ours.model.layers[0].mlp.down_proj.register_forward_hook(lambda module, args, y: seen.append(y.dtype))
    ours(input_ids=ids(), labels=ids()).loss.backward()
    assert set(seen) == {torch.bfloat16}
    kept = ours.__dict__["forward"]
    hotswap.unkernelize(ours)
    assert ours.__dict__["forward"] is kept
    seen.clear()
    ours(input_ids=ids(), labels=ids())
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("part", ["", "model", "model.layers.0.self_attn", "model.layers.0.mlp", "model.norm"])
def test_a_decorated_method(part):
    stock, ours = fresh("llama"), hotswap.kernelize(fresh("llama"), fused_linear_cross_entropy=True)
    count = []

    def counting(function):
        @torch.no_grad()
        def inner(self, *args, **kwargs):
            count.append(part)
            return function(self, *args, **kwargs)

        return inner

    for m in (stock, ours):
        module = m.get_submodule(part)
        function = module.forward.__func__
        module.forward = types.MethodType(functools.wraps(function)(counting(function)), module)
        with torch.no_grad():
            m(input_ids=ids(), labels=ids())
    assert len(count) == 2


# ---- whole layers of hotswap.generate -----------------------------------------------------------------------------------

OPTIONS = dict(max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)


def tripled(module, query, key, value, mask, scaling, dropout=0.0, **kwargs):
    out, weights = modeling_llama.eager_attention_forward(module, 3 * query, key, value, mask, scaling, dropout, **kwargs)
    return out / 2, weights


def own_attention(m):
    AttentionInterface.register("tripled", tripled)
    AttentionMaskInterface.register("tripled", eager_mask)
    m.set_attn_implementation("tripled")


def other_norm(name):
    def change(m):
        for layer in m.model.layers:
            holder = layer if hasattr(layer, name) else layer.self_attn
            before = getattr(holder, name)
            torch.manual_seed(3)
            made = GemmaRMSNorm(before.weight.shape[0], eps=before.variance_epsilon)
            nn.init.normal_(made.weight)
            setattr(holder, name, made)

    return change


WHOLE = {
    "an attention": ("llama", own_attention),
    "the second norm": ("llama", other_norm("post_attention_layernorm")),
    "a head's norm": ("qwen3", other_norm("k_norm")),
}


@pytest.mark.parametrize("what", WHOLE)
def test_whole_layers_see_what_a_layer_has(what):
    """Its class was probed before, with another layer."""
    family, change = WHOLE[what]
    m = hotswap.kernelize(model(family)).eval()
    assert not decode.WholeLayers(m).why
    change(m)
    assert torch.equal(hotswap.generate(m, ids(), **OPTIONS), m.generate(ids(), **OPTIONS))
    assert decode.WholeLayers(m).why


def test_whole_layers_see_functions_of_the_file(monkeypatch):
    m = hotswap.kernelize(model("llama")).eval()
    assert not decode.WholeLayers(m).why
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin, unsqueeze_dim=1: (q, k))
    assert torch.equal(hotswap.generate(m, ids(), **OPTIONS), m.generate(ids(), **OPTIONS))


def test_whole_layers_leave_dropout_to_the_layers():
    m = hotswap.kernelize(model("llama", attention_dropout=0.7)).eval()
    assert not decode.WholeLayers(m).why
    assert decode.WholeLayers(m.train()).why


def test_layers_whose_weights_are_elsewhere():
    from accelerate import cpu_offload

    m = model("llama").eval()
    expected = m.generate(ids(), **OPTIONS)
    cpu_offload(hotswap.kernelize(m), torch.device("cpu"))
    assert torch.equal(hotswap.generate(m, ids(), **OPTIONS), expected)
    with torch.device("meta"):
        hotswap.report(hotswap.kernelize(LlamaForCausalLM(LlamaConfig(**BASE))))


# ---- generation ---------------------------------------------------------------------------------------------------------


def test_keys_and_values_of_two_types():
    """Under autocast a norm leaves keys in float32, and values have 16 bits."""
    m = hotswap.kernelize(model("qwen3")).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(hotswap.generate(m, ids(), **OPTIONS), m.generate(ids(), **OPTIONS))


def test_layers_that_drop_the_cache_are_refused():
    m = hotswap.kernelize(model("llama")).train()
    m.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient checkpointing.*model.eval"):
        hotswap.generate(m, ids(), **OPTIONS)
    assert torch.equal(hotswap.generate(m.eval(), ids(), **OPTIONS), m.generate(ids(), **OPTIONS))


# ---- what is saved ------------------------------------------------------------------------------------------------------


def test_a_saved_config_has_nothing_of_ours(tmp_path):
    m = hotswap.kernelize(model("llama"), attention=True, fused_linear_cross_entropy=True)
    m.save_pretrained(tmp_path)
    assert "hotswap" not in (tmp_path / "config.json").read_text()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    hotswap.unkernelize(hotswap.kernelize(again, attention=True))
    assert again.config._attn_implementation == "eager"
