"""docs/adding_a_kernel.md followed word for word: its shell blocks are cut out and run.

    adding_a_kernel_test.py --build build --python .venv/bin/python

What a reader puts in is put in: DIR is a small model made here, `hotswap` and `python` are on PATH, the cache of the Hub is an
empty one. The server of the block's last line is asked by a second machine, which is another empty cache. Lines of the
second block that want nvcc are not run; the block at all only where --build is the tree's own folder build/.
"""

import argparse
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/adding_a_kernel.md"

MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
letters = Tokenizer(models.BPE())
letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
letters.train_from_iterator(["Hello"], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(sys.argv[1])
sizes = dict(vocab_size=letters.get_vocab_size(), hidden_size=36, intermediate_size=48, num_attention_heads=9, num_key_value_heads=3)
LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes)).save_pretrained(sys.argv[1])
"""


def blocks() -> list[list[str]]:
    found = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if line.strip()] for block in found]


def fail(text: str) -> None:
    sys.exit(f"adding_a_kernel_test: {text}")


def run(line: str, folder: Path, env: dict) -> str:
    print("$", line, flush=True)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if done.returncode:
        fail(f"{PAGE.name} says\n  {line}\nwhich ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def port_of(line: str) -> int:
    """The page's own port, or another where something has that one."""
    port = int(re.search(r"--port (\d+)", line).group(1))
    with socket.socket() as s:
        taken = s.connect_ex(("127.0.0.1", port)) == 0
    if not taken:
        return port
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        print(f"something listens on port {port} here: another one is taken")
        return s.getsockname()[1]


def served(line: str, folder: Path, env: dict, python: Path) -> None:
    port = port_of(line)
    line = re.sub(r"--port \d+", f"--port {port}", line)
    print("$", line, "&", flush=True)
    server = subprocess.Popen(shlex.split(line, comments=True), cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        there = env | {"HF_HOME": str(folder / "another-machine"), "HF_ENDPOINT": f"http://127.0.0.1:{port}", "no_proxy": "127.0.0.1"}
        said = run("hotswap kernelize --model DIR --kernel SiLU=me/my-silu --json", folder, there)
        if '"package": "my-silu"' not in said:
            fail(f"expected the layer SiLU to run my-silu from the self-hosted Hub; got\n{said}")
        call = re.search(r'`(kernels\.get_kernel\("me/my-silu".*?\))`', PAGE.read_text()).group(1)
        script = f"import kernels, torch; print(float({call}.silu(torch.ones(1))))"
        if has_kernels(python):
            said = run(f"python -c {shlex.quote(script)}", folder, there)
            if not said.strip().endswith("0.7310585975646973"):
                fail(f"expected silu(1) in Python; got {said}")
    finally:
        server.terminate()
        server.wait(30)


def has_kernels(python: Path) -> bool:
    return subprocess.run([python, "-c", "import kernels"], capture_output=True).returncode == 0


def follow(block: list[str], folder: Path, env: dict, python: Path) -> None:
    for line in block:
        command = line.split("  #")[0].strip()
        if command.startswith("python") and not has_kernels(python):
            print("not run, for there is no `kernels` here:", command)
        elif command.startswith("hotswap serve-hub"):
            served(command, folder, env, python)
        else:
            run(command, folder, env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="has torch, transformers and kernels")
    args = parser.parse_args()
    outside, inside = blocks()
    if not outside[0].startswith("hotswap kernel init") or not inside[0].startswith("./x build"):
        fail(f"expected a block for a package of your own and one for a package in the tree; got {outside[0]}, {inside[0]}")
    hidden = ("HF_", "KERNELS_CACHE", "LOCAL_KERNELS", "HOTSWAP_", "SSL_CERT", "CXX")
    env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    path = f"{args.build.resolve() / 'bin'}:{args.python.absolute().parent}:{env['PATH']}"
    with tempfile.TemporaryDirectory(prefix="hotswap-page-") as name:
        folder = Path(name)
        of_block = env | {"PATH": path, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        subprocess.run([args.python, "-c", MAKE_MODEL, folder / "DIR"], env=of_block, check=True, capture_output=True)
        follow(outside, folder, of_block, args.python)
    if args.build.resolve() != ROOT / "build":
        print("not run, for another build folder is asked for:", *inside, sep="\n  ")
        return
    for line in inside:
        command = line.split("  #")[0].strip()
        if "--cuda" in command:
            print("not run, for it takes a GPU's compiler and an hour:", command)
        else:
            run(command, ROOT, env)


if __name__ == "__main__":
    main()
