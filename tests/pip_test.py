"""A stranger's view of the Python half: `pip install ./python` from a copy of the sources that has no .venv, then the Python
of README.md exactly as it stands there; and `pip wheel` without an environment of pip's own, with and without nvcc.

    pip_test.py --python .venv/bin/python

pip's environment gets scikit-build-core from the index; torch is the one that is there already, and is not downloaded again.
Where the index does not answer, that half is left out and said.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(p.parent.name for p in ROOT.glob("kernels/*/build.toml"))
SMALL = "activation"  # compiled alone where all would teach nothing more
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"  # what README.md loads; here with few and random weights, in the Hub's cache

MAKE_MODEL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=64, hidden_size=36, intermediate_size=48, num_attention_heads=9, num_key_value_heads=3)
LlamaForCausalLM(LlamaConfig(num_hidden_layers=30, **sizes)).save_pretrained(sys.argv[1])
"""


def run(*command, **kwargs) -> str:
    print("+", *command, flush=True)
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    if done.returncode:
        sys.exit(f"{done.stdout}\npip_test: this command failed with {done.returncode}")
    return done.stdout


def copy_sources(to: Path, packages: list[str]) -> Path:
    listed = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").split("\n")
    wanted = re.compile(rf"(CMakeLists\.txt|cmake/|python/|kernels/(CMakeLists\.txt|common/|({'|'.join(packages)})/))")
    for name in listed:
        if wanted.match(name) and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def fresh_environment(work: Path, python: Path, environment: dict) -> Path:
    """A virtual environment with pip, which sees what `python` has installed; nothing is written there. Before it sees a
    torch, the build wants one of pip, and from then on not."""
    run(python, "-m", "venv", work / "venv")
    fresh = work / "venv/bin/python"
    there = run(python, "-c", "import sys; print(*(p for p in sys.path if p.endswith('-packages')), sep='\\n')").split()
    (work / "backend").mkdir()
    for name in ("scikit_build_core", "packaging", "pathspec", "tomli", "exceptiongroup"):  # the last two: Python 3.10
        if place := next((Path(folder) / name for folder in there if (Path(folder) / name).exists()), None):
            (work / "backend" / name).symlink_to(place)
    ask = [fresh, "-c", "import wheel_backend; print('torch>=2.10' in wheel_backend.get_requires_for_build_wheel())"]
    inside = environment | {"PYTHONPATH": f"{work / 'backend'}", "PYTHONDONTWRITEBYTECODE": "1"}
    before = run(*ask, env=inside, cwd=ROOT / "python").strip()
    # .venv through a link in the copied sources, where the repository has it: ccache compares paths from the sources on.
    (work / "clone").mkdir()
    if (ROOT / ".venv").exists():
        (work / "clone/.venv").symlink_to(ROOT / ".venv")
    linked = [path.replace(f"{ROOT}/.venv/", f"{work}/clone/.venv/") for path in there]
    (site,) = work.glob("venv/lib/python*/site-packages")
    (site / "around.pth").write_text("\n".join([*linked, ""]))
    after = run(*ask, env=inside, cwd=ROOT / "python").strip()
    if (before, after) != ("True", "False"):
        sys.exit(f"pip_test: expected torch to be required where there is none, and only there; got {before}, then {after}")
    return fresh


def index_answers(python: Path, folder: Path) -> bool:
    command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=0", "-d", folder, "scikit-build-core"]
    return subprocess.run(command, capture_output=True).returncode == 0


def agreeing_pair(python: Path, requirements: list[str], environment: dict) -> tuple[str, str]:
    """The transformers and kernels that pip takes for these requirements; exits where that transformers refuses that kernels."""
    from packaging.requirements import Requirement

    command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *requirements]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{done.stderr}\npip_test: pip finds no {' '.join(requirements)}")
    taken = {item["metadata"]["name"]: item["metadata"] for item in json.loads(done.stdout)["install"]}
    wanted = [Requirement(text) for text in taken["transformers"]["requires_dist"] if text.startswith("kernels")]
    versions = taken["transformers"]["version"], taken["kernels"]["version"]
    if not wanted or not all(requirement.specifier.contains(versions[1]) for requirement in wanted):
        sys.exit(f"pip_test: expected a kernels that transformers {versions[0]} accepts; got {versions[1]}, not {wanted[0].specifier}")
    return versions


def documented_requirements() -> list[str]:
    """What README.md tells to install beside ./python, and the extra of python/pyproject.toml."""
    (line,) = re.findall(r"^pip install \./python (.*)$", (ROOT / "README.md").read_text(), re.M)
    (extra,) = re.findall(r"^transformers = (\[.*?\](?=\s|$))", (ROOT / "python/pyproject.toml").read_text(), re.M)
    return [*shlex.split(line), *json.loads(extra)]


def variants(names: list[str]) -> set[tuple[str, str]]:
    """(package, cpu or cuda) of each library among the files of a wheel or of an installed package."""
    found = (re.search(r"packages/(\w+)/build/torch-stable-abi210-(cpu|cu)\d*-[^/]+/[^/]+\.abi3\.so$", name) for name in names)
    return {(m.group(1), "cuda" if m.group(2) == "cu" else "cpu") for m in found if m}


def readme() -> tuple[str, str]:
    """The first Python block of README.md, and the block after it: what it prints."""
    found = re.search(r"^```python\n(.*?)^```\n.*?^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    if not found:
        sys.exit("pip_test: expected a Python block in README.md and the block of what it prints; got none")
    return found.group(1), found.group(2)


def same_on_every_machine(report: str) -> list[str]:
    return [re.sub(r"-(cpu|cu\d+)-", "-cpu-", line).rstrip() for line in report.strip().split("\n")]


def isolated(work: Path, python: Path, environment: dict) -> None:
    sources = copy_sources(work / "clone", PACKAGES)
    said = run(python, "-m", "pip", "install", "./python", cwd=sources, env=environment | without_nvcc())
    if "Downloading torch" in said:
        sys.exit(f"{said}\npip_test: expected the torch that is there; got another download of it")
    (site,) = work.glob("venv/lib/python*/site-packages/hotswap")
    installed = variants([str(p) for p in site.rglob("*.so")])
    if installed != {(name, "cpu") for name in PACKAGES}:
        sys.exit(f"pip_test: expected the CPU variants of {PACKAGES} in {site}; got {sorted(installed)}")
    run(python, ROOT / "tests/package_elf_test.py", "--packages", site / "packages")

    block, promised = readme()
    commit = "0" * 40  # as a download leaves it: read under the name that README.md gives, with no network
    place = work / f"home/hub/models--{MODEL.replace('/', '--')}"
    run(python, "-c", MAKE_MODEL, place / f"snapshots/{commit}")
    (place / "refs").mkdir()
    (place / "refs/main").write_text(commit)
    (work / "empty").mkdir()
    offline = environment | {"HF_HOME": str(work / "home"), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([python, "-c", block], cwd=work / "empty", env=offline, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{block}\n{done.stderr}\npip_test: this block of README.md failed")
    if same_on_every_machine(done.stdout) != same_on_every_machine(promised):
        sys.exit(f"pip_test: README.md says that its Python block prints\n{promised}\nit printed\n{done.stdout}")
    print(done.stdout)


def nvcc_folders() -> str:
    names = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/cuda/bin"]
    return ";".join(dict.fromkeys(name for name in names if (Path(name) / "nvcc").exists()))


def without_nvcc() -> dict:
    """CMake looks past the folders that have one."""
    return {"CMAKE_ARGS": f"'-DCMAKE_IGNORE_PATH={nvcc_folders()}'"} if nvcc_folders() else {}


def without_isolation(work: Path, python: Path, environment: dict) -> None:
    backends = {"cpu": without_nvcc()}
    if nvcc_folders():
        backends["cuda"] = {"CMAKE_ARGS": "-DHOTSWAP_CUDA=ON"}
    for backend, settings in backends.items():
        sources, out = copy_sources(work / backend, [SMALL]), work / f"wheel-{backend}"
        command = [python, "-m", "pip", "wheel", "./python", "--no-build-isolation", "--no-deps", "--no-index", "-w", out]
        run(*command, cwd=sources, env=environment | settings)
        (wheel,) = out.glob("hotswap-*-py3-none-*.whl")
        made = variants(zipfile.ZipFile(wheel).namelist())
        if made != {(SMALL, which) for which in {"cpu", backend}}:
            sys.exit(f"pip_test: expected {SMALL} for cpu and {backend} in {wheel.name}; got {sorted(made)}")
    if not nvcc_folders():
        print("not tested: a wheel with CUDA kernels: no nvcc here")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="has torch, transformers, kernels and scikit-build-core")
    args = parser.parse_args()
    hidden = ("LD_LIBRARY_PATH", "PYTHONPATH", "HOTSWAP_PACKAGES", "HOTSWAP_PYTHON", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    # By variables, not by pip's -C, which Ubuntu 22.04's pip does not know. ccache finds what the repository's build compiled:
    # the build folder is at the same path from the sources, and the compiler is called by the name that CMake looks for first.
    environment |= {"SKBUILD_BUILD_DIR": "../build", "CCACHE_NOHASHDIR": "1"}
    if "CXX" not in environment and shutil.which("c++"):
        environment["CXX"] = "c++"
    with tempfile.TemporaryDirectory(prefix="hotswap-pip-") as folder:
        work = Path(folder)
        python = fresh_environment(work, args.python.absolute(), environment)
        without_isolation(work, python, environment)
        if index_answers(python, work / "index"):
            requirements = documented_requirements()
            print(*requirements, "->", *agreeing_pair(python, requirements, environment))
            isolated(work, python, environment)
        else:
            print("not tested: pip install ./python in pip's own environment, README.md's Python: no package index answers")


if __name__ == "__main__":
    main()
