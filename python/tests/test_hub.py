"""Stock scripts against a self-hosted Hub: `hotswap serve-hub` over a folder with these packages under the names that
transformers' guides use, HF_ENDPOINT set, and nothing of ours in the process."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import blocks
import pytest
from tiny import model

PACKAGES = Path(os.environ["HOTSWAP_PACKAGES"])
PROGRAM = PACKAGES.parent / "bin/hotswap"
REPOSITORIES = {  # repository/revision: package
    "kernels-community/liger-kernels/v3": "norm",
    "kernels-community/liger_kernels/v1": "norm",
    "kernels-community/activation/v1": "activation",
    "kernels-community/rotary/v2": "rotary",
    "kernels-community/mlp/v1": "mlp",
    "kernels-community/deformable-detr/v1": "deformable",
    "kernels-community/mamba-ssm/v2": "mamba",
    "kernels-community/megablocks/v1": "moe",
    "kernels-community/moe/v1": "moe",
    "kernels-community/flash-attn2/v3": "attention",
    "kernels-community/flash-attn2/v4": "attention",
    "kernels-community/flash-attn2/v2.1.0": "attention",
    "kernels-community/flash-attn/v1": "attention",
    "random-repo/random-attention/v1": "attention",
}
ATTENTION = """
import torch
CALLS = []
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False):
    CALLS.append("flash_attn_func")
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1]) if causal else None
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=softmax_scale, enable_gqa=True)
    return y.transpose(1, 2)
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                           causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False, block_table=None):
    raise NotImplementedError("nothing is padded here")
"""
METADATA = dict(name="attention", id="_attention_cpu_abc1234", version=1, license="apache-2.0",
                backend={"type": "cpu"}) | {"python-depends": []}  # fmt: skip

# transformers' own mapping and KernelConfig know GPUs alone. Where there is none they are told that the CPU is one: the
# packages for it are asked for, carry CPU kernels, and the tensors stay where they are.
BEFORE = """
import json, sys, torch
import kernels
from kernels import Mode, get_kernel
from transformers import AutoModelForCausalLM, KernelConfig
from transformers.integrations import hub_kernels
from transformers.utils import kernel_config as config_module
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    own = hub_kernels.Device
    hub_kernels.Device = lambda type, **rest: own("cuda" if type == "cpu" else type, **rest)
    config_module.infer_device = lambda model: "cuda"
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
input_ids = torch.arange(3, 15, device=device)[None]
labels = input_ids.clone()
for name, module in list(sys.modules.items()):  # to replace a class transformers asks all its modules: these want torchvision
    if name.startswith("transformers.") and "image_processing" in name and module.__file__ is None:
        del sys.modules[name]
want = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", device_map=device)(input_ids).logits.detach()
"""
AFTER = """
assert "hotswap" not in sys.modules
if "model" in globals():
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids).logits, want, rtol=1e-4, atol=1e-5)
made = {}
OPS = {"norm": ("rms_norm", "rms_norm_fwd", "rms_norm_bwd"), "rotary": ("rotary", "rotary_bwd"), "activation": ("silu", "silu_bwd"),
       "mlp": ("swiglu", "swiglu_bwd"), "moe": ("moe_experts", "moe_experts_train", "moe_experts_bwd_"),
       "deformable": ("deformable_attention", "deformable_attention_bwd"),
       "mamba": ("causal_conv1d", "causal_conv1d_bwd", "causal_conv1d_update", "selective_scan", "selective_scan_fwd",
                 "selective_scan_bwd", "selective_state_update", "ssd", "ssd_fwd", "ssd_bwd", "gated_rms_norm_fwd", "gated_rms_norm_bwd")}
for name, module in list(sys.modules.items()):
    if name.endswith("._ops") and name[0] == "_":
        package_id = name.split(".")[0]
        assert module.__file__.startswith(sys.argv[1]), module.__file__  # downloaded
        ops = OPS[package_id.split("_")[1]]
        made |= {f"{package_id.split('_')[1]}.{op}": getattr(torch.ops, package_id).call_count(op) for op in ops}
    made |= {op: module.CALLS.count(op) for op in vars(module).get("CALLS", ()) if op == "flash_attn_func"}
print("CALLS " + json.dumps({op: n for op, n in made.items() if n}))
"""

# what a guide shows, and which ops it must have called
MODEL = '"Qwen/Qwen3-0.6B", device_map=device'
OF_A_RELEASE = {"rotary.rotary_bwd"}  # not every release's mapping has it for training
LAYERS = "norm.rms_norm rotary.rotary activation.silu"
NORM = "norm.rms_norm norm.rms_norm_fwd norm.rms_norm_bwd"
MOE = "moe.moe_experts moe.moe_experts_train moe.moe_experts_bwd_"
SMALL = "hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=97"
EXPERTS = "num_local_experts=4, num_experts_per_tok=2, pad_token_id=0"
SCRIPTS = {
    "get_kernel": (
        'activation = get_kernel("kernels-community/activation", version=1)\n'
        "x = torch.randn(4, 8, device=device)\n"
        "torch.testing.assert_close(activation.silu(x), torch.nn.functional.silu(x))",
        "activation.silu",
    ),
    "use_kernels": (
        f"model = AutoModelForCausalLM.from_pretrained({MODEL}, use_kernels=True)\n"
        "output = model.generate(input_ids, max_new_tokens=5)",
        LAYERS,
    ),
    "modes": (
        f"model = AutoModelForCausalLM.from_pretrained({MODEL}, use_kernels=True)\n"
        "model.eval()\n"
        "with torch.no_grad():\n"
        "    output = model.generate(input_ids, max_new_tokens=5)\n"
        "model.train()\n"
        "loss = model(input_ids, labels=labels).loss\n"
        "loss.backward()",
        LAYERS + " norm.rms_norm_fwd norm.rms_norm_bwd",
    ),
    "a layer and the attention by name": (
        'config = KernelConfig({"RMSNorm": "kernels-community/liger_kernels:LigerRMSNorm"})\n'
        f"model = AutoModelForCausalLM.from_pretrained({MODEL}, use_kernels=True, kernel_config=config,\n"
        '    attn_implementation="kernels-community/flash-attn2:FlashAttention2")',
        LAYERS + " flash_attn_func",
    ),
    "a layer for each device": (  # from_pretrained itself refuses more than one
        f"model = AutoModelForCausalLM.from_pretrained({MODEL})\n"
        "model.set_use_kernels(True, KernelConfig({\n"
        '    "RMSNorm": {"cuda": "kernels-community/liger_kernels:LigerRMSNorm", "rocm": "acme/rocm-norm:RMSNorm"}}))',
        LAYERS,
    ),
    "gate and up in one": (
        'config = KernelConfig({"Qwen3MLP": "kernels-community/mlp:PackedSwiGLUMLP"})\n'
        f"model = AutoModelForCausalLM.from_pretrained({MODEL}, use_kernels=True, kernel_config=config)\n"
        "assert model.model.layers[1].mlp.gate_up_proj.weight.shape == (96, 32)\n"
        "model.save_pretrained(sys.argv[1] + '/saved')\n"
        "from safetensors import safe_open\n"
        "with safe_open(sys.argv[1] + '/saved/model.safetensors', 'pt') as saved:\n"
        "    assert saved.get_slice('model.layers.1.mlp.up_proj.weight').get_shape() == [48, 32]\n"
        "model.train()\n"
        "model.set_use_kernels(True, KernelConfig({'PackedSwiGLUMLP': 'kernels-community/mlp:PackedSwiGLUMLP'}))\n"
        "model(input_ids, labels=labels).loss.backward()\n",
        "norm.rms_norm norm.rms_norm_fwd norm.rms_norm_bwd rotary.rotary mlp.swiglu mlp.swiglu_bwd",
    ),
    "deformable attention": (
        "from transformers import DeformableDetrConfig, DeformableDetrModel, ResNetConfig\n"
        "backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type='basic',\n"
        "                        out_features=['stage2', 'stage3', 'stage4'])\n"
        "sizes = dict(d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8, num_queries=5)\n"
        "detr = DeformableDetrModel(DeformableDetrConfig(backbone_config=backbone, **sizes)).to(device).eval()\n"
        "image = torch.randn(1, 3, 128, 128, device=device)\n"
        "stock = detr(image).last_hidden_state.detach()\n"
        "detr.set_use_kernels(True)\n"
        "torch.testing.assert_close(detr(image).last_hidden_state, stock, rtol=1e-4, atol=1e-5)\n"
        "detr.train()\n"
        "detr(image).last_hidden_state.sum().backward()",
        "deformable.deformable_attention deformable.deformable_attention_bwd",
    ),
    "state spaces": (
        "from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM\n"
        "sizes = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4)\n"
        "one = MambaForCausalLM(MambaConfig(**sizes, intermediate_size=64, time_step_rank=3))\n"
        "two = Mamba2ForCausalLM(Mamba2Config(**sizes, num_heads=4, head_dim=16, n_groups=1, chunk_size=8))\n"
        "for m in (one, two):\n"
        "    m.to(device).eval()\n"
        "    stock = m(input_ids, labels=labels).loss.detach(), m.generate(input_ids, max_new_tokens=3, do_sample=False)\n"
        "    m.set_use_kernels(True)\n"
        "    assert torch.equal(m.generate(input_ids, max_new_tokens=3, do_sample=False), stock[1])\n"
        "    m.train()\n"
        "    m.set_use_kernels(True)\n"
        "    loss = m(input_ids, labels=labels, use_cache=False).loss\n"
        "    loss.backward()\n"
        "    torch.testing.assert_close(loss.detach(), stock[0], rtol=1e-4, atol=1e-5)",
        " ".join(f"mamba.{op}" for op in (
            "causal_conv1d", "causal_conv1d_bwd", "causal_conv1d_update", "selective_scan", "selective_scan_fwd",
            "selective_scan_bwd", "selective_state_update", "ssd", "ssd_fwd", "ssd_bwd", "gated_rms_norm_fwd",
            "gated_rms_norm_bwd",
        )),
    ),
    "experts of gpt-oss": (
        "from transformers import GptOssConfig, GptOssForCausalLM\n"
        f"oss = GptOssForCausalLM(GptOssConfig({SMALL}, head_dim=8, {EXPERTS})).to(device).eval()\n"
        "stock = oss(input_ids, output_router_logits=True)\n"
        "oss.set_use_kernels(True)\n"
        "got = oss(input_ids, output_router_logits=True)\n"
        "torch.testing.assert_close(got.logits.detach(), stock.logits.detach(), rtol=1e-4, atol=1e-5)\n"
        "torch.testing.assert_close(got.router_logits, stock.router_logits, rtol=1e-4, atol=1e-5)\n"
        "with torch.no_grad():\n"
        "    oss(input_ids)\n"
        "oss.train()\n"
        "oss(input_ids, labels=labels).loss.backward()",
        f"{NORM} rotary.rotary {MOE}",
    ),
    "experts of Llama 4": (  # no class of transformers carries the name any more: the script gives it
        "from kernels import LayerRepository, kernelize, use_kernel_forward_from_hub, use_kernel_mapping\n"
        "from transformers import Llama4TextConfig\n"
        "from transformers.models.llama4.modeling_llama4 import Llama4TextMoe\n"
        "use_kernel_forward_from_hub('Llama4TextMoe')(Llama4TextMoe)\n"
        f"block = Llama4TextMoe(Llama4TextConfig({SMALL}, intermediate_size_mlp=48, num_local_experts=4)).to(device)\n"
        "x = torch.randn(2, 7, 32, device=device)\n"
        "stock = block(x)\n"
        "layer = LayerRepository('kernels-community/moe', layer_name='Llama4TextMoe', version=1)\n"
        "with use_kernel_mapping({'Llama4TextMoe': {device: layer}}):\n"
        "    kernelize(block, mode=Mode.TRAINING, device=device)\n"
        "got = block(x)\n"
        "torch.testing.assert_close(got, stock, rtol=1e-4, atol=1e-5)\n"
        "got[0].sum().backward()\n"
        "with torch.no_grad():\n"
        "    block(x)",
        MOE,
    ),
    **{
        f"attention {name}": (
            f"model = AutoModelForCausalLM.from_pretrained({MODEL}, attn_implementation={name!r}, {options})",
            "flash_attn_func",
        )
        for name, options in (
            ("kernels-community/flash-attn2", ""),
            ("kernels-community/flash-attn", ""),
            ("kernels-community/flash-attn2@v2.1.0", ""),
            ("random-repo/random-attention", "allow_all_kernels=True"),
        )
    },
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The folder that is served, and the environment of who asks for it."""
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}: only the packages are built here")
    folder = tmp_path_factory.mktemp("hub")
    served = folder / "served"
    model("qwen3").save_pretrained(served / "models/Qwen/Qwen3-0.6B/main")
    (served / "trusted_publishers.txt").write_text("kernels-community\n")
    for name, package in REPOSITORIES.items():
        build = served / "kernels" / name / "build"
        if package == "attention":
            (build / "torch-universal").mkdir(parents=True)
            (build / "torch-universal/__init__.py").write_text(ATTENTION)
            (build / "torch-universal/metadata.json").write_text(json.dumps(METADATA))
        else:
            shutil.copytree(PACKAGES / package / "build", build)
            (cpu,) = build.glob("*-cpu-*")  # which a torch with CUDA refuses under its own name
            shutil.copytree(cpu, build / "torch-universal")
    server = subprocess.Popen([PROGRAM, "serve-hub", served, "--port", "0", "--quiet"], stdout=subprocess.PIPE, text=True)
    try:
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        caches = dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "KERNELS_CACHE"), str(folder / "home"))
        yield dict(HF_ENDPOINT=address.rstrip("/."), HF_HUB_OFFLINE="0", **caches)
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def results(hub):
    parts = {name: BEFORE + code + AFTER for name, (code, _) in SCRIPTS.items()}
    parts["refused"] = parts["attention random-repo/random-attention"].replace("allow_all_kernels=True", "")
    told = blocks.run([*parts.values()], "import transformers.integrations.hub_kernels", hub["HF_HOME"], **hub)
    return dict(zip(parts, told, strict=True))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(results, name):
    told = results[name]
    assert "CALLS " in told, told
    assert set(json.loads(told.split("CALLS ")[1])) - OF_A_RELEASE == set(SCRIPTS[name][1].split())


def test_nobody_vouches_for_it(results):
    assert "is not from a trusted publisher" in results["refused"], results["refused"]


def test_the_environment_switches_everything_off(hub):
    script = BEFORE + SCRIPTS["use_kernels"][0] + AFTER
    (told,) = blocks.run([script], "import transformers.integrations.hub_kernels", hub["HF_HOME"], USE_HUB_KERNELS="0", **hub)
    assert "CALLS {}" in told, told
