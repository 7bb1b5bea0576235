"""hotswap.kernelize(model, kernel_config=...): what a mapping may say, what comes of it, and the report's reasons."""

import copy
import shutil

import pytest
import torch
from kernels import Mode
from tiny import Calls, batch, close, model, twin
from transformers import KernelConfig, T5Config, T5Model
from transformers.activations import ACT2FN

import hotswap
from hotswap.core.kernel_ref import parse
from hotswap.core.mapping import Mapping
from hotswap.core.packages import package
from hotswap.swap.bind import is_bound
from hotswap.swap.plan import sites

FOLDER = hotswap.packages_folder()


def rows(m, layer):
    return [row for row in hotswap.report(m).rows if row.layer == layer]


def only(m, layer):
    """The one reason, or package, of all rows of a layer."""
    (found,) = {(row.package, row.why) for row in rows(m, layer)}
    return found


def test_the_grammar():
    assert parse("").stock and parse("a/b").layer == "" and parse("a/b").version is None
    assert parse("a/b@v2:Layer")[1:6] == ("a/b", "", "Layer", 2, "")
    assert parse("a/b@v2.1.0").revision == "v2.1.0" and parse("a/b@v2.1.0").exact
    assert parse("a/b@>=1,<3:L").is_specifier and not parse("a/b@>=1,<3:L").exact
    assert parse("/x/y:L")[1:4] == ("", "/x/y", "L")
    assert parse(("a/b:L", {"version": 3, "trust_remote_code": True}))[4:7] == (3, "", True)
    for wrong in (
        "a//b", "a/b:c:d", "a:b", "b", "./a/b", "a/b@", "a/b@>=x", "a/b@no branch", 3, ("a/b", 1), ("a/b", {"versions": 1}),
        ("a/b", {"version": 1, "revision": "main"}), ("a/b@v1", {"version": 1}), ("a/b", {"version": -1}),
        ("a/b", {"version": 1, "trust_remote_code": "yes"}), "a--b/c", "a/b.git",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected a kernel as"):
            parse(wrong)
    with pytest.raises(ValueError, match="a bundled package is hotswap/norm"):
        parse("norm:RMSNorm")


def test_devices_and_modes():
    m = Mapping({"RMSNorm": {"cuda": {Mode.INFERENCE: "a/b", "training": "c/d"}, "metal": "e/f"}})
    assert m.choice(("RMSNorm",), "cuda", "TRAINING|TORCH_COMPILE").ref is None
    assert m.choice(("RMSNorm",), "cuda", "TRAINING").ref.repo == "c/d"
    assert m.choice(("RMSNorm",), "mps", "INFERENCE").ref.repo == "e/f"
    assert m.choice(("RMSNorm",), "cpu", "INFERENCE") is None  # as without the entry
    alone = Mapping({"RMSNorm": {"cuda": "a/b"}}, inherit_mapping=False)
    assert "for cpu, only for cuda" in alone.choice(("RMSNorm",), "cpu", "INFERENCE").why
    for wrong in ({"RMSNorm": {"gpu": "a/b"}}, {"RMSNorm": {}}, {"": "a/b"}, ["RMSNorm"], {"RMSNorm": "/a/b:L"}):
        with pytest.raises(ValueError, match="expected .*; got "):
            Mapping(wrong)


def test_every_form_of_one_layer():
    stock = model("qwen3")
    want = stock(**batch()).logits
    for value, package in (
        ("kernels-community/liger_kernels:LigerRMSNorm", "norm"),
        ("kernels-community/rmsnorm", "norm"),
        ("kernels-community/liger-kernels@>=1,<4:LigerRMSNorm", "norm"),
        ({"cpu": "hotswap/norm", "rocm": "acme/rocm-norm:RocmRMSNorm"}, "norm"),
        (("hotswap/norm:RMSNorm", {"version": 1}), "norm"),
        ("", None),
    ):
        m = twin(stock, kernel_config={"RMSNorm": value})
        assert {row.package for row in rows(m, "RMSNorm")} == {package}, value
        assert {row.package for row in rows(m, "rotary_pos_emb")} == {"rotary"}
        close(m(**batch()).logits, want)
    assert only(m, "RMSNorm") == (None, "the mapping says stock")


def test_a_later_version_is_the_repositorys_own():
    from hotswap.core.sources import _asks_for_one_up_to as answers

    for text, stands in (("a/b", True), ("a/b@v3", True), ("a/b@v4", False), ("a/b@>=2.5,<3.0", True), ("a/b@>=99", False)):
        assert answers(3, parse(text)) == stands and answers(None, parse(text)), text


@pytest.mark.parametrize("layer, kernel", [("RMSNorm", "hotswap/norm"), ("attention", "hotswap/attention")])
@pytest.mark.parametrize("version", ["@v9", "@>=99", "@main", {"revision": "refs/pr/1"}, {"version": 2}])
def test_a_bundled_package_has_one_version(layer, kernel, version):
    entry = kernel + version if isinstance(version, str) else (kernel, version)
    with pytest.raises(ValueError, match=f"expected version 1 of the package {kernel[8:]}; got .*; leave it out"):
        twin(model("llama"), kernel_config={layer: entry})


@pytest.mark.parametrize("version", ["@v1", "@>=1", "@<2", {"version": 1}])
def test_the_version_of_a_bundled_package_may_be_named(version):
    entry = f"hotswap/norm{version}" if isinstance(version, str) else ("hotswap/norm", version)
    assert only(twin(model("llama"), kernel_config={"RMSNorm": entry}), "RMSNorm") == ("norm", "")


def test_an_option_that_is_off_and_an_entry_for_its_layer_are_a_conflict():
    tried = set()
    for family in ("llama", "gemma", "mixtral", "gpt_oss"):
        for site in sites(m := model(family), Mapping()):
            r, layer = site.replacement, site.layers[0]
            if r is None or (r.option, layer) in tried:
                continue
            tried.add((r.option, layer))
            entry = {layer: f"hotswap/{r.package}"}
            with pytest.raises(ValueError, match=f"expected one choice of {layer}; got {r.option}=False and {layer}='hotswap/{r.package}'"):
                hotswap.kernelize(m, kernel_config=entry, **{r.option: False})
            assert not is_bound(m)
            hotswap.kernelize(m, kernel_config={layer: ""}, **{r.option: False})  # one choice, made twice
            hotswap.unkernelize(m)
    assert {option for option, _ in tried} >= {"rms_norm", "rope", "mlp", "activation", "experts", "cross_entropy", "linear"}, tried


def test_an_option_of_a_later_call_and_the_entry_that_is_kept_are_a_conflict():
    m = hotswap.kernelize(model("llama"), kernel_config={"RMSNorm": {"cpu": {"training": "hotswap/norm", "inference": "hotswap/norm"}}})
    with pytest.raises(ValueError, match="expected one choice of RMSNorm; got rms_norm=False"):
        hotswap.kernelize(m, rms_norm=False)
    m.eval(), m.train()  # binds again, with every option that it has
    assert only(m, "RMSNorm") == ("norm", "")


def test_attention_of_a_name_that_the_package_lacks():
    with pytest.raises(ValueError, match="expected a layer of the package attention"):
        twin(model("llama"), kernel_config={"attention": "hotswap/attention:Nope"})


@pytest.mark.parametrize("options, why", [
    ({"kernel_config": {"RMSNorm": ""}}, "the mapping names its part RMSNorm and not DecoderLayer"),
    ({"kernel_config": {"MLP": "hotswap/mlp:SwiGLUMLP"}}, "the mapping names its part SwiGLUMLP and not DecoderLayer"),
    ({"kernel_config": {"DecoderLayer": ""}}, "the mapping says stock"),
    ({"kernel_config": {"RMSNorm": "", "DecoderLayer": "hotswap/decode"}}, None),
    ({"kernel_config": {"DecoderLayer": "org/other"}}, "hotswap.generate runs only hotswap/decode, and the mapping has org/other"),
    ({"rms_norm": False}, "rms_norm is off, a part of it"),
    ({"rope": False}, "rope is off, a part of it"),
    ({"mlp": False}, "mlp is off, a part of it"),
    ({}, None),
])  # fmt: skip
def test_generate_runs_whole_layers_only_where_nothing_else_is_chosen(options, why):
    m = twin(model("llama").eval(), **options)
    before = package("decode").calls("decoder_layer")
    hotswap.generate(m, torch.tensor([[3, 4, 5]]), max_new_tokens=4, min_new_tokens=4)
    assert only(m, "DecoderLayer") == (None, why or "bound in the steps of hotswap.generate")
    assert (package("decode").calls("decoder_layer") > before) == (why is None)


def test_a_wrong_entry_of_whole_layers_is_an_error_of_kernelize():
    for family, entry, error in (
        ("llama", "hotswap/decode@v9", "expected version 1 of the package decode"),
        ("llama", "hotswap/decode:Nope", "expected a layer of the package decode"),
        ("mixtral", "", "expected layers that the model has: .*; got 'DecoderLayer'"),
    ):
        m = model(family)
        with pytest.raises(ValueError, match=error):
            hotswap.kernelize(m, kernel_config={"DecoderLayer": entry})
        assert "_hotswap_chosen" not in m.__dict__


def test_the_row_of_whole_layers_says_why_they_are_not_bound(monkeypatch):
    assert only(hotswap.kernelize(model("llama", hidden_act="relu")), "DecoderLayer") == (None, "LlamaDecoderLayer computes something else")
    assert only(hotswap.kernelize(model("phi3")), "DecoderLayer")[1].startswith("its parts are")
    m = hotswap.kernelize(model("llama"))
    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    assert only(m, "DecoderLayer") == (None, "USE_HUB_KERNELS is off")


def test_a_part_that_is_mapped_keeps_the_whole_stock():
    m = twin(model(), kernel_config={"SiLU": "kernels-community/activation"})
    assert only(m, "SwiGLUMLP") == (None, "the mapping names its part SiLU and not SwiGLUMLP")
    with torch.no_grad(), Calls() as calls:
        m(**batch())
    assert calls.made["activation.silu"] == 2 and "mlp.swiglu" not in calls.made


@pytest.mark.parametrize("act, key", [("gelu_fast", "FastGELU"), ("gelu_new", "NewGELU"), ("gelu_pytorch_tanh", "GeluTanh")])
@pytest.mark.parametrize("kernel", ["kernels-community/activation", ""])
def test_each_name_of_a_part_keeps_the_whole_stock(act, key, kernel):
    """In the layers' gated MLP, whose own kernel computes them too."""
    stock = model(hidden_act=act)
    m = twin(stock, kernel_config={key: kernel})
    assert only(m, "GeGLUMLP") == (None, f"the mapping names its part {key} and not GeGLUMLP")
    names = {row.name for row in rows(m, "GeluTanh") if row.package == "activation"}
    assert names == ({f"model.layers.{i}.mlp.act_fn" for i in range(2)} if kernel else set())
    with torch.no_grad(), Calls() as calls:
        close(m(**batch()).logits, stock(**batch()).logits)
    assert not any(name.startswith("mlp.") for name in calls.made)


@pytest.mark.parametrize("family, key, kernel", [
    ("llama4_text", "Llama4TextMoe", "kernels-community/moe:Llama4TextMoe"),
    ("llama4_text", "Llama4TextMoe", "RedHatAI/moe:Llama4TextMoe"),
    ("llama4_text", "Llama4TextMoe", "kernels-community/moe"),
    ("gpt_oss", "MegaBlocksMoeMLP", "kernels-community/megablocks:MegaBlocksMoeMLP"),
    ("gpt_oss", "MegaBlocksMoeMLP", "kernels-community/megablocks"),
])  # fmt: skip
def test_blocks_of_experts_by_the_guides_names(family, key, kernel):
    m = twin(model(family), kernel_config={key: kernel})
    packages, why = only(m, rows(m, key)[0].layer if rows(m, key) else "Experts")
    assert packages == "moe" and why.startswith(f"stands in for {kernel.split(':')[0]}:{key}")


def test_an_entry_of_another_kind():
    stock = model("gemma2")
    config = {"MLP": "kernels-community/liger_kernels:LigerSwiGLUMLP"}
    assert only(twin(stock, kernel_config=config), "GeGLUMLP") == (None, "mlp:SwiGLUMLP serves SwiGLUMLP and not GeGLUMLP")
    with pytest.raises(RuntimeError, match="strict.*serves SwiGLUMLP"):
        hotswap.kernelize(stock, kernel_config=config, strict=True)
    with pytest.raises(ValueError, match="serves SwiGLUMLP; map another"):
        hotswap.kernelize(stock, kernel_config={"RMSNorm": "hotswap/mlp:SwiGLUMLP"})
    with pytest.raises(ValueError, match="layers that the model has: .*RMSNorm.*got 'RMSNorms'"):
        hotswap.kernelize(stock, kernel_config={"RMSNorms": ""})
    with pytest.raises(ValueError, match="a bundled package of .*norm"):
        hotswap.kernelize(stock, kernel_config={"RMSNorm": "hotswap/norms"})
    with pytest.raises(ValueError, match="a layer of the package norm, which has .*RMSNorm"):
        hotswap.kernelize(stock, kernel_config={"RMSNorm": "hotswap/norm:Norm"})
    with pytest.raises(TypeError, match="expected kernel_config as"):
        hotswap.kernelize(stock, kernel_config=3)
    assert "_hotswap_chosen" not in stock.__dict__, "an error changes nothing"


# ---- packages of others, in a folder ------------------------------------------------------------------------------

LAYERS = """
import torch
from torch import nn
CALLS = []
class RMSNorm(nn.Module):
    can_torch_compile = True
    has_backward = True
    weight: torch.Tensor
    variance_epsilon: float
    def forward(self, hidden_states):
        CALLS.append("norm")
        x = hidden_states.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(hidden_states.dtype)
class Doubled(nn.Module):
    def forward(self, hidden_states):
        return 2 * hidden_states
class Wide(nn.Module):
    def forward(self, hidden_states, scale):
        return scale * hidden_states
class Raises(nn.Module):
    def forward(self, hidden_states):
        raise TypeError("no such device")
class Rotary(nn.Module):
    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        CALLS.append("rotary")
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        turn = lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
        return q * cos + turn(q) * sin, k * cos + turn(k) * sin
class Forward(RMSNorm):
    has_backward = False
class Block(nn.Module):
    has_backward = True
    def forward(self, hidden_states):
        CALLS.append("block")
        return hidden_states, None
"""


@pytest.fixture
def acme(tmp_path):
    """A package of somebody else, without ops."""
    place = tmp_path / "acme/build/torch-universal"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("from . import layers\n")
    (place / "layers.py").write_text(LAYERS)
    (place / "metadata.json").write_text(
        '{"name": "acme-norm", "id": "_acme_norm_%s", "version": 3, "license": "mit", "python-depends": [], "backend": {"type": "cpu"}}'
        % tmp_path.name.replace("-", "_")
    )
    return tmp_path / "acme"


def calls_of(m):
    import sys

    (row,) = {row.package for row in hotswap.report(m).rows if row.package and "acme" in row.package}
    return next(module.CALLS for name, module in sys.modules.items() if name.endswith(".layers") and "acme" in name and row in module.__file__)


@pytest.mark.parametrize("key", ["MegaBlocksMoeMLP", "Experts"])
def test_experts_by_both_names(acme, key):
    """gpt_oss has its experts in a block that is MegaBlocksMoeMLP to kernels: the row is the block's."""
    m = model("gpt_oss")
    name = "model.layers.0.mlp"
    hotswap.kernelize(m, kernel_config={key: ""})
    assert {row.why for row in rows(m, "MegaBlocksMoeMLP")} == {"the mapping says stock"} and rows(m, "MegaBlocksMoeMLP")[0].name == name
    hotswap.kernelize(m, kernel_config={key: "hotswap/moe:Experts"})
    assert {row.package for row in rows(m, "MegaBlocksMoeMLP")} == {"moe"} and not rows(m, "Experts")


def test_a_block_of_another_package(acme):
    (acme / "build/torch-universal/layers.py").write_text(LAYERS.replace("class Block", "class MegaBlocksMoeMLP"))
    config = hotswap.kernel_config({"MegaBlocksMoeMLP": f"{acme}:MegaBlocksMoeMLP"}, use_local_kernel=True)
    m = hotswap.kernelize(model("gpt_oss"), kernel_config=config)
    assert [(row.name, row.package) for row in rows(m, "MegaBlocksMoeMLP")][0] == ("model.layers.0.mlp", str(acme)) and not rows(m, "Experts")
    m.model(batch()["input_ids"])
    assert "block" in calls_of(m)


def test_a_package_of_somebody_else(acme):
    stock = model("qwen3")
    m = hotswap.kernelize(copy.deepcopy(stock), kernel_config=hotswap.kernel_config({"RMSNorm": f"{acme}:RMSNorm"}, use_local_kernel=True))
    found = rows(m, "RMSNorm")
    assert {(row.package, row.version, row.variant, row.form) for row in found} == {(str(acme), 3, "torch-universal", "RMSNorm")}
    close(m(**batch()).logits, stock(**batch()).logits)
    assert calls_of(m).count("norm") >= len(found) and not rows(m, "rotary_pos_emb")[0].package
    again = hotswap.kernelize(m)  # what a call does not say stays
    assert {row.package for row in rows(again, "RMSNorm")} == {str(acme)}
    assert {row.package for row in rows(hotswap.unkernelize(m), "RMSNorm")} == {None}
    both = {"rotary_pos_emb": f"{acme}:Rotary", "RMSNorm": f"{acme}:RMSNorm"}
    hotswap.kernelize(m, kernel_config=hotswap.kernel_config(both, use_local_kernel=True, inherit_mapping=True))
    close(m(**batch()).logits, stock(**batch()).logits)
    assert "rotary" in calls_of(m) and rows(m, "SwiGLUMLP")[0].package == "mlp"


@pytest.mark.parametrize(
    "layer, why",
    [
        ("Doubled", "computes something else"),
        ("Wide", "takes other arguments"),
        ("Raises", "TypeError: no such device"),
    ],
)
def test_what_cannot_stand_in_is_stock_with_a_reason(acme, layer, why):
    m = model("qwen3")
    config = hotswap.kernel_config({"RMSNorm": f"{acme}:{layer}"}, use_local_kernel=True)
    hotswap.kernelize(m, kernel_config=config)
    package, reason = only(m, "RMSNorm")
    assert package is None and why in reason
    with pytest.raises(RuntimeError, match="strict"):
        hotswap.kernelize(m, kernel_config=config, strict=True)


def test_a_package_without_backward(acme):
    stock = model("qwen3")
    config = hotswap.kernel_config({"RMSNorm": f"{acme}:Forward"}, use_local_kernel=True)
    m = hotswap.kernelize(copy.deepcopy(stock), mode=Mode.TRAINING, kernel_config=config)
    assert "has no backward" in only(m, "RMSNorm")[1]
    m = hotswap.kernelize(copy.deepcopy(stock), mode=Mode.INFERENCE, kernel_config=config)
    assert only(m, "RMSNorm")[0] == str(acme)


def test_a_copy_of_a_bundled_package_serves_all_its_forms(tmp_path):
    shutil.copytree(FOLDER / "norm", tmp_path / "norm")
    stock = model("gemma2")
    m = twin(stock, kernel_config=hotswap.kernel_config({"RMSNorm": f"{tmp_path / 'norm'}:RMSNorm"}, True))
    assert only(m, "RMSNorm") == ("norm", f"as {tmp_path / 'norm'}")
    close(m(**batch()).logits, stock(**batch()).logits)
    with pytest.raises(FileNotFoundError, match="which is none"):
        hotswap.kernel_config({"RMSNorm": "/no/such/folder:RMSNorm"}, True).create_compatible_mapping(stock)
    assert "Cannot find a build variant" in only(twin(stock, kernel_config=hotswap.kernel_config({"RMSNorm": f"{tmp_path}:RMSNorm"}, True)), "RMSNorm")[1]


def test_transformers_own_config_is_taken():
    m = twin(model(), kernel_config=KernelConfig({"RMSNorm": ("hotswap/norm:RMSNorm", {"version": 1})}))
    assert only(m, "RMSNorm")[0] == "norm"


# ---- the report and strict ------------------------------------------------------------------------------------------


def test_every_stock_row_has_a_reason():
    m = model("mixtral")
    for stock in (m, hotswap.kernelize(copy.deepcopy(m), rms_norm=False), hotswap.kernelize(copy.deepcopy(m), mode="training")):
        assert all(row.why for row in hotswap.report(stock).rows if row.package is None)
    assert {row.why for row in hotswap.report(m).rows if row.layer == "RMSNorm"} == {"kernelize() has not seen it"}


def test_norms_of_t5_are_bound():
    torch.manual_seed(0)
    stock = T5Model(T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)).eval()
    ids = batch()["input_ids"]
    for dtype in (torch.float32, torch.bfloat16):
        stock.to(dtype)
        m = hotswap.kernelize(copy.deepcopy(stock), strict=True)
        assert only(m, "RMSNorm")[0] == "norm"
        close(m(ids, decoder_input_ids=ids)[0].float(), stock(ids, decoder_input_ids=ids)[0].float(), 1e-5 if dtype == torch.float32 else 2**-6)
    layer = stock.encoder.final_layer_norm.float()  # a float32 weight on bfloat16, as where parts are kept in float32
    x = torch.randn(3, 32).bfloat16()
    want = layer(x)
    got = hotswap.kernelize(layer)(x)
    assert got.dtype == want.dtype
    close(got, want)


def test_float64_stays_stock():
    stock = model().double()
    m = twin(stock)
    assert only(m, "RMSNorm") == (None, "norm:RMSNorm has no float64, only bfloat16, float16, float32")
    with torch.no_grad(), Calls() as calls:
        assert torch.equal(m(**batch()).loss, stock(**batch()).loss)
    assert calls.made == {}
    assert hotswap.report(hotswap.kernelize(ACT2FN["silu"])).rows[0].package == "activation"


def test_the_wrapper_of_autocast_does_not_hide_what_runs():
    from accelerate.utils import convert_outputs_to_fp32
    from types import MethodType

    m = twin(model(), fused_linear_cross_entropy=True)
    inner = m.forward.__func__
    m.forward = MethodType(convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(inner)), m)  # as accelerate does
    assert only(m, "LinearCrossEntropy")[0] == "loss"


def test_off_for_everything(monkeypatch):
    m = model()
    monkeypatch.setenv("USE_HUB_KERNELS", "0")
    hotswap.kernelize(m)
    assert only(m, "RMSNorm") == (None, "USE_HUB_KERNELS is off")
    with pytest.raises(RuntimeError, match="USE_HUB_KERNELS"):
        hotswap.kernelize(m, strict=True)
    monkeypatch.setenv("USE_HUB_KERNELS", "")  # as unset
    assert only(hotswap.kernelize(m), "RMSNorm")[0] == "norm"


# ---- a second time, and with transformers' own ----------------------------------------------------------------------


def test_a_second_kernelize_keeps_what_it_does_not_name():
    config = {"RMSNorm": "", "attention": "kernels-community/flash-attn2:FlashAttention2"}
    m = twin(model("qwen3"), kernel_config=config, fused_linear_cross_entropy=True)
    for mode in (Mode.INFERENCE, Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE):
        hotswap.kernelize(m, mode=mode)
        assert only(m, "RMSNorm")[1] == "the mapping says stock" and only(m, "LinearCrossEntropy")[0] == "loss"
        assert only(m, "attention")[0] == "attention" and only(m, "SwiGLUMLP")[0] == "mlp"
    hotswap.kernelize(hotswap.unkernelize(m))
    assert only(m, "RMSNorm")[0] == "norm"


def test_use_kernels_and_liger_together(tmp_path):
    """Trainer applies Liger's options to a model that from_pretrained has kernelized, and then calls train()."""
    from transformers import AutoModelForCausalLM

    model("qwen3").save_pretrained(tmp_path)
    for options in (dict(use_kernels=True, kernel_config=hotswap.kernel_config()), dict(use_kernels=True)):
        m = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
        hotswap.liger._apply_liger_kernel_to_instance(m, rope=True, cross_entropy=True, swiglu=True, rms_norm="kernel_config" not in options)
        for training in (True, False):
            m.train(training)
            with torch.set_grad_enabled(training), Calls() as calls:
                m(**batch())
            assert calls.made["norm.rms_norm_fwd" if training else "norm.rms_norm"] == 9, options
            assert calls.made["mlp.swiglu"] == 2 and calls.made["rotary.rotary"] == 2
        hotswap.unkernelize(m)
        with Calls() as calls:
            m(**batch())
        assert calls.made == {}
