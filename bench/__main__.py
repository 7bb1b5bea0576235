"""One runner for every measurement in Python.

    python -m bench                      what there is
    python -m bench peers --help         a program's own options follow its name

A program is run as `python FILE` runs it, with python/ where Python looks for hotswap.
"""

import ast
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {  # name -> file, whose first line is what it measures
    **{name: f"bench/{name}.py" for name in (
        "speed", "python_calls", "cpu_operators", "loss_memory", "mamba_ops", "tokenizer_speed",  # on a CPU
        "embeddings",
        "cpu_decode", "cpu_experts", "guessed_tokens", "training_curve", "peer_transformers", "serve_peers", "serve_company", "gguf_folder",
        "hub_speed", "hub_load",  # over loopback
        "peers", "peers_table", "gpu_model", "gpu_both_hosts", "gpu_generate", "gpu_llama", "gpu_serve", "gpu_serve_llama", "fsdp",  # on a GPU
        "mamba_model", "moe_model", "moe_generate", "gpu_plot",
    )},
    "attention": "kernels/attention/bench/attention.py",  # the kernels of one package, on a GPU
    "attention_decode": "kernels/attention/bench/attention_decode.py",
    "decode": "kernels/decode/bench/decode.py",
    "decode_rows": "kernels/decode/bench/decode_rows.py",
    "deformable": "kernels/deformable/bench/deformable.py",
    "mamba": "kernels/mamba/bench/mamba.py",
}  # fmt: skip


def about(file: str) -> str:
    return (ast.get_docstring(ast.parse((ROOT / file).read_text())) or "").split("\n")[0]


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(__doc__)
        print("\n".join(f"{name:18} {about(file)}" for name, file in PROGRAMS.items()))
        return
    if name not in PROGRAMS:
        sys.exit(f"bench: expected a program of {', '.join(PROGRAMS)}; got {name}; `python -m bench` shows what each measures")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    os.execv(sys.executable, [sys.executable, str(ROOT / PROGRAMS[name]), *sys.argv[2:]])


if __name__ == "__main__":
    main()
