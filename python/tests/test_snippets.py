"""The snippets of transformers' guides (docs/snippets.md), word for word but for the names of models, repositories and devices, on the
CPU, against `hotswap serve-hub`. Where stock transformers refuses one, and only there, KernelConfig( becomes
hotswap.kernel_config( and model.kernelize( becomes hotswap.kernelize(model, ."""

import json
import os
import subprocess
from pathlib import Path

import blocks
import pytest
from test_hub import ATTENTION, METADATA
from tiny import model

PACKAGES = Path(os.environ["HOTSWAP_PACKAGES"])
PROGRAM = PACKAGES.parent / "bin/hotswap"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/snippets.md"
LAYERS = """
import torch
from torch import nn
class FastRMSNorm(nn.Module):
    can_torch_compile = True
    has_backward = True
    weight: torch.Tensor
    variance_epsilon: float
    def forward(self, hidden_states):
        x = hidden_states.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(hidden_states.dtype)
RMSNorm = LigerRMSNorm = FastRMSNorm
"""
REPOSITORIES = {  # repository/revision: what it has
    "kernels-community/fast-norm/v1": LAYERS,
    "kernels-community/fast-norm/v2": LAYERS,
    "kernels-community/fast-norm/v0.1.0": LAYERS,
    "random-repo/random-norm/v1": LAYERS,
    "kernels-community/flash-attn/v1": ATTENTION,
    "kernels-community/flash-attn2/v3": ATTENTION,
    "kernels-community/flash-attn2/v2.1.0": ATTENTION,
    "kernels-community/flash-attn2/v2.4.0": ATTENTION,
    "random-repo/random-attention/v1": ATTENTION,
}
LLAMA = "meta-llama/Llama-2-7b-hf"
LOAD = '''model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen3-0.6B",
    use_kernels=True,
    kernel_config=kernel_config,
    device_map="cpu"
)
'''
IMPORT = "from transformers import AutoModelForCausalLM, KernelConfig\n\n"


def loads(arguments: str) -> str:
    return f'model = AutoModelForCausalLM.from_pretrained(\n    "Qwen/Qwen3-0.6B",\n    {arguments},\n    device_map="cpu"\n)\n'


def off(word: str) -> str:
    return f'import os\nos.environ["USE_HUB_KERNELS"] = "{word}"\n' + loads("use_kernels=True")


def config_of(entry: str) -> str:
    return IMPORT + "kernel_config = KernelConfig(\n    kernel_mapping={\n        " + entry + "\n    }\n)\n" + LOAD


def devices_of(*others: str) -> str:
    entries = ['"cpu": "kernels-community/fast-norm:FastRMSNorm"', *(f'"{d}": "kernels-community/{d}-norm:Norm"' for d in others)]
    return '"RMSNorm": {' + ", ".join(entries) + "}"


# name: (the guide's text, does stock transformers run it, which package runs RMSNorm then, which attention)
SNIPPETS = {
    "a layer by a repository alone": (config_of('"RMSNorm": "kernels-community/fast-norm",'), False, "kernels-community/fast-norm"),
    "use_kernels=True": (loads("use_kernels=True"), True, None),
    "attention by name": (loads('attn_implementation="kernels-community/flash-attn2"'), True, None, "kernels-community/flash-attn2"),
    "attention by another name": (loads('attn_implementation="kernels-community/flash-attn"'), True, None, "kernels-community/flash-attn"),
    "use_kernels=True and generate": (
        loads("use_kernels=True").replace("Qwen/Qwen3-0.6B", LLAMA) + "output = model.generate(input_ids, max_new_tokens=50)\n", True, None,
    ),
    "attention of a publisher that is not trusted": (
        loads('attn_implementation="random-repo/random-attention",\n    allow_all_kernels=True'), True, None, "random-repo/random-attention",
    ),
    "attention of one version": (
        loads('attn_implementation="kernels-community/flash-attn2@v2.1.0"'), True, None, "kernels-community/flash-attn2@v2.1.0",
    ),
    "training and inference": (
        loads("use_kernels=True")
        + "model.eval()\nwith torch.no_grad():\n    output = model.generate(input_ids, max_new_tokens=50)\n"
        + "model.train()\nloss = model(input_ids, labels=labels).loss\nloss.backward()\n",
        True,
        None,
    ),
    "modes": (
        "from kernels import Mode\n" + loads("dtype=torch.float32") + "model.kernelize(mode=Mode.INFERENCE)\n"
        "model.kernelize(mode=Mode.TRAINING)\nmodel.kernelize(mode=Mode.TRAINING | Mode.TORCH_COMPILE)\n",
        False,
        "norm",
    ),
    "a layer by its name in the repository": (
        config_of('"RMSNorm": "kernels-community/liger_kernels:LigerRMSNorm",').replace(
            '    use_kernels=True', '    attn_implementation="kernels-community/flash-attn2:FlashAttention2",\n    use_kernels=True'
        ),
        False,
        "norm",
        "kernels-community/flash-attn2:FlashAttention2",
    ),
    "a kernel for each device": (config_of(devices_of("rocm", "metal", "xpu")), False, "kernels-community/fast-norm"),
    "three devices": (config_of(devices_of("rocm", "xpu")), False, "kernels-community/fast-norm"),
    "a tag": (config_of('"RMSNorm": "kernels-community/fast-norm@v0.1.0:FastRMSNorm",'), False, "kernels-community/fast-norm"),
    "a range of versions": (config_of('"RMSNorm": "kernels-community/fast-norm@>=1,<3:FastRMSNorm",'), False, "kernels-community/fast-norm"),
    "a range of versions of attention": (
        config_of('"attention": "kernels-community/flash-attn2@>=2.0,<3.0",'), False, "norm", "hotswap",
    ),
    "a folder": (
        IMPORT + 'kernel_mapping = {\n    "RMSNorm": "/path/to/fast_norm:LigerRMSNorm",\n}\n'
        "kernel_config = KernelConfig(kernel_mapping, use_local_kernel=True)\n\n" + LOAD.replace('device_map="cpu"', 'dtype="auto",\n    device_map="auto"'),
        False,
        "/path/to/fast_norm",
    ),
    "a layer that stays stock": (config_of('"RMSNorm": "",'), False, None),
    "metadata": (
        config_of('"RMSNorm": ("random-repo/random-norm:RMSNorm", {"version": 1, "trust_remote_code": True}),'), False, "random-repo/random-norm",
    ),
    "everything off": (off("0"), True, None),
    "everything off by OFF": (off("OFF"), True, None),
    "everything off by NO": (off("NO"), True, None),
    "Liger by name": (
        "from liger_kernel.transformers import apply_liger_kernel_to_qwen3\napply_liger_kernel_to_qwen3()\n"
        'from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")\n',
        False,
        "norm",
    ),
    "Liger for Llama": (
        "from liger_kernel.transformers import apply_liger_kernel_to_llama\napply_liger_kernel_to_llama()\n"
        "print('Liger kernels applied to LLaMA model class')\n"
        f"from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('{LLAMA}')\n",
        False,
        "norm",
    ),
    "Liger in Trainer, all of it": (
        "from transformers import TrainingArguments\n" + loads("dtype=torch.float32")
        + "training_args = TrainingArguments(\n    **some,\n    use_liger_kernel=True\n)\n"
        "Trainer(model, training_args, train_dataset=dataset).train()\n",
        False,
        "norm",
    ),
    "Liger in Trainer": (
        "from transformers import TrainingArguments\n" + loads("use_kernels=True")
        + "training_args = TrainingArguments(\n    **some,\n    use_liger_kernel=True,\n    liger_kernel_config={\n"
        '        "rope": True,\n        "cross_entropy": True,\n        "rms_norm": False,\n        "swiglu": True,\n    }\n)\n'
        "Trainer(model, training_args, train_dataset=dataset).train()\n",
        False,
        None,
    ),
}  # fmt: skip

BEFORE = """
import sys, torch
from transformers import AutoModelForCausalLM, Trainer
input_ids = torch.arange(3, 15)[None]
labels = input_ids.clone()
dataset = [dict(input_ids=input_ids[0], labels=labels[0])] * 8
some = dict(output_dir=sys.argv[1] + "/out", max_steps=2, report_to=[], save_strategy="no")
want = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")(input_ids).logits.detach()
"""
OURS = "import hotswap\nhotswap.enable_for_trainer(shadow=True)\n"
AFTER = """
model.eval()
if "TrainingArguments" not in globals():
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids).logits, want, rtol=1e-4, atol=1e-5)
import hotswap
rows = hotswap.report(model).rows
norms = {row.package for row in rows if row.layer == "RMSNorm"}
stock = {row.why for row in rows if row.package is None}
assert "" not in stock, stock
print("RAN", norms, model.config._attn_implementation, "MLPS", {row.package for row in rows if row.layer == "SwiGLUMLP"})
"""


def ours(text: str) -> str:
    text = text.replace("= KernelConfig(", "= hotswap.kernel_config(")
    return OURS + text.replace("model.kernelize(", "hotswap.kernelize(model, ")


def package(folder: Path, code: str) -> None:
    place = folder / "build/torch-universal"
    place.mkdir(parents=True)
    layers = code is LAYERS
    (place / "__init__.py").write_text("from . import layers\n" if layers else code)
    if layers:
        (place / "layers.py").write_text(code)
    name = "norm" if layers else "attention"
    own = f"_{name}_" + "_".join(folder.parts[-3:]).replace("-", "_").replace(".", "_")
    (place / "metadata.json").write_text(json.dumps(METADATA | {"name": f"fast-{name}", "id": own}))


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """What each snippet prints: {name: (stock's, ours)}."""
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}: only the packages are built here")
    folder = tmp_path_factory.mktemp("snippets")
    served = folder / "served"
    for family, name in (("qwen3", "Qwen/Qwen3-0.6B"), ("llama", LLAMA)):
        model(family).save_pretrained(served / "models" / name / "main")
    (served / "trusted_publishers.txt").write_text("kernels-community\n")
    for name, code in REPOSITORIES.items():
        package(served / "kernels" / name, code)
    package(folder / "fast_norm", LAYERS)
    server = subprocess.Popen([PROGRAM, "serve-hub", served, "--port", "0", "--quiet"], stdout=subprocess.PIPE, text=True)
    try:
        address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
        caches = dict.fromkeys(("HF_HOME", "HF_HUB_CACHE", "KERNELS_CACHE"), str(folder / "home"))
        texts = {name: text.replace("/path/to/fast_norm", str(folder / "fast_norm")) for name, (text, *_) in SNIPPETS.items()}
        before = lambda text: BEFORE.replace("Qwen/Qwen3-0.6B", LLAMA) if LLAMA in text else BEFORE  # noqa: E731
        parts = [before(text) + text + AFTER for text in texts.values()] + [before(text) + ours(text) + AFTER for text in texts.values()]
        once = "import transformers.integrations.hub_kernels, transformers.models.qwen3.modeling_qwen3"
        found = blocks.run(parts, once, str(folder), HF_ENDPOINT=address.rstrip("/."), HF_HUB_OFFLINE="0", **caches)
        found = [text.replace(str(folder / "fast_norm"), "/path/to/fast_norm") for text in found]
        return dict(zip(texts, zip(found[: len(texts)], found[len(texts) :], strict=True), strict=True))
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(losses, name):
    _, as_it_is, norm, *attention = SNIPPETS[name]
    by_stock, by_us = losses[name]
    assert ("RAN" in by_stock) == as_it_is, by_stock
    ran = by_stock if as_it_is else by_us
    assert "RAN" in ran, ran
    said = ran.split("RAN ")[1]
    assert said.startswith(f"{ {norm} } "), said
    if attention:
        assert f" {attention[0]} " in said, said
    if name.startswith("Liger"):
        assert "MLPS {'mlp'}" in said, said


def test_the_document_has_each():
    rows = [line.split("|")[1:-1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    found = {cells[0].strip(): cells for cells in rows}
    for name, (_, as_it_is, *_) in SNIPPETS.items():
        assert ("as it is" in found[name][-1]) == as_it_is, name
