"""What is requested by name, by an entry of the mapping or an option that is off by default, is bound or has a row; strict means it."""

import copy

import pytest
import shrunk
import torch
import transformers
from kernels import Device, Mode
from kernels.layer import CUDAProperties
from tiny import batch, close, model
from torch import nn

import hotswap
from hotswap.core.kernel_ref import parse
from hotswap.core.mapping import Mapping
from hotswap.core.sources import bundled
from hotswap.matchers import attention
from hotswap.swap import elsewhere, requests

ON_A_CPU = pytest.mark.skipif(torch.get_default_device().type == "cuda", reason="on a GPU it is bound")


def rows(m, layer):
    return [row for row in hotswap.report(m).rows if row.layer == layer]


def whys(m, layer):
    """{(package, why, by_choice)} of its rows."""
    return {(row.package, row.why, row.by_choice) for row in rows(m, layer)}


def refuses(m, match, **options):
    """strict is an error, which changes nothing."""
    with pytest.raises(RuntimeError, match=f"strict.*{match}"):
        hotswap.kernelize(m, strict=True, **options)
    assert "_hotswap_chosen" not in m.__dict__


# ---- strict ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FalconForCausalLM", "BloomForCausalLM", "MptForCausalLM"])
def test_attention_that_looks_no_implementation_up(name):
    stock, inputs = shrunk.build(getattr(transformers, name))
    refuses(stock, f"{name[:-11]}Attention\\): no attention: {attention.NO_LOOK_UP}", attention=True)
    assert {row.by_choice for row in rows(stock, "attention")} == {True}
    before = stock.config._attn_implementation
    m = hotswap.kernelize(copy.deepcopy(stock), attention=True)
    assert whys(m, "attention") == {(None, attention.NO_LOOK_UP, False)} and len(rows(m, "attention")) == 2
    assert m.config._attn_implementation == before
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, :3] = 0
    with torch.no_grad():
        close(m(**inputs, attention_mask=mask).logits[1], stock(**inputs, attention_mask=mask).logits[1], 1e-4)


@pytest.mark.parametrize("name", ["OPTForCausalLM", "BloomForCausalLM", "T5ForConditionalGeneration", "MptForCausalLM", "GPT2LMHeadModel"])
def test_the_loss_without_logits_of_a_family_that_has_no_form_of_it(name):
    stock, _ = shrunk.build(getattr(transformers, name))
    refuses(stock, f"no LinearCrossEntropy: {name} has no form of it", fused_linear_cross_entropy=True)
    with pytest.raises(ValueError, match="expected layers that the model has: .*; got 'LinearCrossEntropy' in the kernel mapping"):
        hotswap.kernelize(stock, kernel_config={"LinearCrossEntropy": "hotswap/loss"})
    assert whys(hotswap.kernelize(stock, fused_linear_cross_entropy=True), "LinearCrossEntropy") == {(None, f"{name} has no form of it", False)}


@pytest.mark.parametrize("option", requests.BY_OPTION)
def test_an_option_that_no_layer_is_for(option):
    stock = nn.Sequential(nn.LayerNorm(8))
    refuses(stock, f"no {requests.BY_OPTION[option]}: Sequential has", **{option: True})
    hotswap.kernelize(stock, strict=True)
    (row,) = rows(hotswap.kernelize(stock, **{option: True}), requests.BY_OPTION[option])
    assert row.name == "" and row.package is None and not row.by_choice


def test_every_option_that_is_off_by_default_is_a_request():
    from hotswap.matchers.registered import OPTIONS

    assert requests.BY_OPTION.keys() == {name for name, on in OPTIONS.items() if not on}


@ON_A_CPU
def test_the_norm_that_adds_on_a_cpu():
    entry, why = {"AddRMSNorm": "hotswap/norm"}, elsewhere.ON_A_GPU
    refuses(model(), f"no AddRMSNorm: {why}", kernel_config=entry)
    assert whys(hotswap.kernelize(model(), kernel_config=entry), "AddRMSNorm") == {(None, why, False)}
    assert whys(hotswap.kernelize(model(), strict=True), "AddRMSNorm") == {(None, why, True)}
    hotswap.kernelize(model(), kernel_config={"AddRMSNorm": {"cuda": "hotswap/norm"}}, strict=True)


def test_whole_layers_that_the_op_does_not_serve():
    entry = {"DecoderLayer": "hotswap/decode"}
    refuses(model("phi3"), r"model.layers.0 \(Phi3DecoderLayer\): no DecoderLayer: its parts are", kernel_config=entry)
    refuses(model(), "no DecoderLayer: rms_norm is off, a part of it", kernel_config=entry, rms_norm=False)
    hotswap.kernelize(model("phi3"), strict=True)


@ON_A_CPU
def test_whole_layers_that_the_op_serves():
    """In float32, which on a GPU it does not."""
    hotswap.kernelize(model(), kernel_config={"DecoderLayer": "hotswap/decode"}, strict=True)


@pytest.mark.parametrize("how", [dict(inherit_mapping=False), dict(use_local_kernel=True)])
def test_strict_without_inheritance(how):
    """As in the C++ host: what the mapping does not name has no kernel."""
    config = hotswap.kernel_config({"RMSNorm": "hotswap/norm"}, **how)
    refuses(model(), "the mapping does not name it, and inherits no default", kernel_config=config)
    off = dict(rope=False, mlp=False, activation=False, cross_entropy=False)
    hotswap.kernelize(model(), kernel_config=config, strict=True, **off)  # options say so
    hotswap.kernelize(model(), kernel_config=hotswap.kernel_config({"RMSNorm": "hotswap/norm"}, use_local_kernel=True, inherit_mapping=True), strict=True)


# ---- names and entries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repo", sorted({repo for repo, _, _ in bundled()["attention"].stands_in}))
def test_attention_by_a_layer_or_function_that_the_repository_lacks(repo):
    for how in (dict(attention=f"{repo}:Nope"), dict(kernel_config={"attention": f"{repo}:Nope"})):
        m = model()
        with pytest.raises(ValueError, match=f"expected a layer or function of {repo}: .*FlashAttention2.*; got '{repo}:Nope'"):
            hotswap.kernelize(m, **how)
        assert "_hotswap_chosen" not in m.__dict__
    for name in ("", ":attention", ":FlashAttention2", ":flash_attn_func", ":flash_attn_varlen_func"):
        assert {row.package for row in rows(hotswap.kernelize(model(), attention=f"{repo}{name}"), "attention")} == {"attention"}


@pytest.mark.parametrize("entry, error", [
    ({"metal": "a/b", "mps": "c/d"}, "one entry of RMSNorm for mps; got metal and mps"),
    ({"cpu": {"training": "a/b", "TRAINING": "c/d"}}, "one entry of RMSNorm for training; got training and TRAINING"),
    ({"cpu": {Mode.TRAINING | Mode.TORCH_COMPILE: "a/b", "torch_compile|training": "c/d"}}, "one entry of RMSNorm for training"),
    ({"cpu": {}}, "at least one mode for RMSNorm; got none"),
    ({"cpu": {"inference|training": "a/b"}}, "inference or training, with torch_compile or not"),
    ({"cpu": {"torch_compile": "a/b"}}, "inference or training, with torch_compile or not"),
    ({Device(type="cuda", properties=CUDAProperties(75, 90)): "a/b"}, "a device without properties"),
    ({("cuda",): "a/b"}, "a device of cpu"),
    (("a/b", {"revision": 3}), "the revision 3 is not a text"),
    (("a/b", {"revision": ""}), "the revision '' is not a text"),
    (("a/b", {3: 1}), "3 beside it"),
    (("", {"version": 1}), "'' keeps the layer stock, and version beside it"),
])  # fmt: skip
def test_entries_that_would_be_lost(entry, error):
    with pytest.raises(ValueError, match=f"expected .*{error}"):
        Mapping({"RMSNorm": entry})


def test_two_keys_for_one_layer():
    for other in ("", "hotswap/mlp:GeGLUMLP", "hotswap/mlp@v1"):
        with pytest.raises(ValueError, match="one kernel for SwiGLUMLP; got MLP='hotswap/mlp:SwiGLUMLP' and SwiGLUMLP="):
            hotswap.kernelize(model(), kernel_config={"MLP": "hotswap/mlp:SwiGLUMLP", "SwiGLUMLP": other})
    hotswap.kernelize(model(), kernel_config={"MLP": "hotswap/mlp:SwiGLUMLP", "SwiGLUMLP": "hotswap/mlp"}, strict=True)


def test_an_option_against_an_entry_for_its_part():
    entry, option = {"ForCausalLMLoss": "hotswap/loss"}, dict(fused_linear_cross_entropy=True)
    refuses(model(), "the mapping names its part ForCausalLMLoss and not LinearCrossEntropy", kernel_config=entry, **option)
    hotswap.kernelize(model(), kernel_config=entry, strict=True)


@pytest.mark.parametrize("name", ["acme/nowhere", "acme/nowhere:Nope"])
def test_an_attention_that_cannot_be_loaded_leaves_a_stock_model(name, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    m = model()
    with pytest.raises(Exception, match="acme/nowhere"):
        hotswap.kernelize(m, attention=name, allow_all_kernels=True)
    assert not any(name.startswith("_hotswap") for part in m.modules() for name in part.__dict__)
    assert m.config._attn_implementation == model().config._attn_implementation


@ON_A_CPU
def test_an_entry_for_another_device_is_a_note():
    m = hotswap.kernelize(model(), kernel_config={"RMSNorm": {"rocm": "acme/norm:Norm", "xpu": ""}})
    assert whys(m, "RMSNorm") == {("norm", "the mapping names RMSNorm only on rocm, xpu", False)}


@pytest.mark.parametrize("option, entry", [
    ("hotswap/attention", "kernels-community/flash-attn2"), ("hotswap/attention", "hotswap/attention"), (True, ""), (False, "hotswap/attention"),
])  # fmt: skip
def test_attention_chosen_twice(option, entry):
    for call in (lambda **given: hotswap.kernelize(model(), **given), lambda kernel_config, **given: hotswap.kernel_config(kernel_config, **given)):
        with pytest.raises(ValueError, match=f"one choice of attention; got attention={option!r} and {entry!r}"):
            call(kernel_config={"attention": entry}, attention=option)
    assert rows(hotswap.kernelize(model(), kernel_config={"attention": "hotswap/attention"}, attention=True), "attention")[0].package


def test_an_entry_of_the_wrong_kind_beside_mlp():
    for entries in ({"RMSNorm": "hotswap/mlp:SwiGLUMLP", "MLP": "hotswap/mlp:SwiGLUMLP"}, {"MLP": "hotswap/norm:RMSNorm"}):
        with pytest.raises(ValueError, match="expected a kernel for .*; got .*; map another layer of a package"):
            hotswap.kernelize(model(), kernel_config=entries)


# ---- kernels by mode ------------------------------------------------------------------------------------------------

BY_MODE = {"RMSNorm": {"cpu": {"inference": "", "training": "hotswap/norm"}, "cuda": {"inference": "", "training": "hotswap/norm"}}}


def norms(m) -> set:
    return {row.package for row in rows(m, "RMSNorm")}


def test_kernels_by_mode_follow_train_and_eval():
    stock = model().eval()
    m = hotswap.kernelize(copy.deepcopy(stock), kernel_config=BY_MODE)
    others = [copy.deepcopy(m)]
    holder = nn.Sequential(copy.deepcopy(m))  # DDP and others call train() of what they hold
    for training in (True, False, True):
        for each in (m, *others):
            assert norms(each.train(training)) == ({"norm"} if training else {None})
        holder.train(training)
        assert norms(holder[0]) == ({"norm"} if training else {None})
        close(m(**batch()).logits, stock(**batch()).logits)
    assert "_hotswap_chosen" not in hotswap.unkernelize(m).eval().__dict__ and type(m) is type(stock)


def test_kernels_of_a_mode_that_is_given_stay():
    """As by kernels' own kernelize with a mode."""
    m = hotswap.kernelize(model().eval(), kernel_config=BY_MODE, mode="training")
    assert norms(m) == norms(m.train()) == norms(m.eval()) == {"norm"}
    assert norms(hotswap.kernelize(m, mode="inference")) == norms(m.train()) == {None}


def test_kernels_by_mode_of_a_model_that_is_loaded(tmp_path):
    model().save_pretrained(tmp_path)
    options = dict(use_kernels=True, kernel_config=hotswap.kernel_config(BY_MODE))
    m = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    for training in (True, False, True, False):
        assert norms(m.train(training)) == ({"norm"} if training else {None})


# ---- the switch, and what generate refuses --------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["banana", "2", "y"])
def test_a_word_for_the_switch_that_means_nothing(monkeypatch, word):
    monkeypatch.setenv("USE_HUB_KERNELS", word)
    with pytest.raises(ValueError, match=f"expected USE_HUB_KERNELS to be .*; got '{word}'; correct it or unset it"):
        hotswap.kernelize(model())


def test_rows_while_all_is_switched_off(monkeypatch):
    monkeypatch.setenv("USE_HUB_KERNELS", "false")
    m = hotswap.kernelize(model(), attention=True, fused_linear_cross_entropy=True)
    assert {row.why for row in hotswap.report(m).rows} == {"USE_HUB_KERNELS is off"}


def test_what_is_chosen_by_name_is_switched_off_too(monkeypatch):
    """experts_implementation and attn_implementation "hotswap"."""
    from tiny import Calls

    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    hotswap.register_experts()
    attention.register()
    stock = model("gpt_oss")
    stock.set_attn_implementation("eager")
    m = copy.deepcopy(stock)
    m.set_experts_implementation("hotswap")
    m.set_attn_implementation("hotswap")
    mask = torch.tensor([[0] * 4 + [1] * 8, [1] * 12])
    with torch.no_grad(), Calls() as calls:
        close(m(**batch(), attention_mask=mask).logits[1], stock(**batch(), attention_mask=mask).logits[1])
    assert calls.made == {}


def test_what_generate_refuses_is_in_the_report():
    m = hotswap.kernelize(model("mistral", sliding_window=5))
    found = hotswap.report(m)
    with pytest.raises(ValueError) as error:
        hotswap.generate(m.eval(), batch()["input_ids"], max_new_tokens=2)
    assert found.why_not_generated == str(error.value).replace("hotswap.generate:", "hotswap.generate refuses this model:")
    assert found.why_not_generated in str(found) and whys(m, "DecoderLayer") == {(None, found.why_not_generated, True)}
    assert hotswap.report(hotswap.kernelize(model())).why_not_generated == ""


def test_parse_refuses_everything_by_a_value_error():
    for wrong in (3, None, b"a/b", ["a/b"], ("a/b", 3), ("a/b", {"version": "1"}), ("a/b", {"trust_remote_code": 1}), (3, {}), {"a": "b"}, object()):
        with pytest.raises(ValueError, match="expected a kernel as"):
            parse(wrong)
