"""Our tokenizers beside Hugging Face's `tokenizers` and SentencePiece on the same text: how, in bench/METHOD.md.

    tokenizer_speed.py --build build [--text FILE] [--rounds 5] [--csv FILE]

Trains a WordPiece, a byte-level BPE and a Unigram model of 4,000 tokens on the text (default: the sources and documents
of this repository). SentencePiece takes part where the package is installed; its model, with its table of rules, is
then the Unigram model of all three.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import ROOT, Results, add_flags  # noqa: E402

VOCABULARY = 4000
LIBRARY = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
lines = open(sys.argv[2], encoding="utf-8", newline="").read().removesuffix("\\n").split("\\n")
for _ in range(2):
    start = time.process_time()
    out = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    cpu = time.process_time() - start
print(json.dumps({"cpu": cpu, "tokens": sum(len(e.ids) for e in out)}))
"""
SENTENCE_PIECE = """
import json, sys, time
import sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
lines = open(sys.argv[2], encoding="utf-8", newline="").read().removesuffix("\\n").split("\\n")
for _ in range(2):
    start = time.process_time()
    out = model.encode(lines, num_threads=1)
    cpu = time.process_time() - start
print(json.dumps({"cpu": cpu, "tokens": sum(map(len, out))}))
"""


def default_text() -> str:
    files = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout
    texts = [ROOT / name for name in files.split() if name.endswith((".md", ".cpp", ".h", ".py", ".cuh"))]
    return "\n".join(path.read_text(errors="replace") for path in texts)


def train(folder: Path, text: Path) -> dict[str, Path]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer, bert.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    common = {"vocab_size": VOCABULARY, "show_progress": False}
    made = {
        "WordPiece": (bert, trainers.WordPieceTrainer(special_tokens=["[UNK]"], **common)),
        "byte-level BPE": (gpt2, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **common)),
    }
    out = {}
    for name, (tokenizer, trainer) in made.items():
        tokenizer.train([str(text)], trainer)
        out[name] = folder / f"{name}.json"
        tokenizer.save(str(out[name]))
    return out


def charsmap(model: bytes) -> bytes:
    """The rules of a SentencePiece model: field 2 (bytes) of its field 3 (normalizer_spec)."""

    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        while at < len(data):
            key = varint()
            size = {0: lambda: 0, 1: lambda: 8, 2: varint, 5: lambda: 4}[key & 7]()
            if key & 7 == 0:
                varint()
            yield key >> 3, data[at : at + size]
            at += size

    spec = next(value for number, value in fields(model) if number == 3)
    return next(value for number, value in fields(spec) if number == 2)


def train_sentence_piece(folder: Path, text: Path) -> Path:
    import sentencepiece
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    prefix = folder / "spm"
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=VOCABULARY, hard_vocab_limit=False, minloglevel=2
    )
    model = prefix.with_suffix(".model")
    loaded = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [(loaded.id_to_piece(i), loaded.get_score(i)) for i in range(len(loaded))]
    tokenizer = Tokenizer(models.Unigram(pieces, loaded.unk_id(), False))
    rules = normalizers.Precompiled(charsmap(model.read_bytes()))
    tokenizer.normalizer = normalizers.Sequence([rules, normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "Unigram.json"))
    return model


class Sides:
    def __init__(self, build: Path, text: Path):
        self.build, self.text = build, text

    def run(self, command: list, **more: str) -> dict:
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"} | more
        done = subprocess.run([str(c) for c in command], env=environment, capture_output=True, text=True)
        line = next((l for l in done.stdout.splitlines() if l.startswith('{"cpu"')), None)
        if done.returncode or line is None:
            sys.exit(f"tokenizer_speed: {command[0]} failed with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        return json.loads(line)

    def ours(self, tokenizer: Path, threads: int) -> dict:
        command = [self.build / "bin/tokenizers_test", "--gtest_filter=TokenizerSpeed.DISABLED_Batch"]
        variables = {"TOKENIZER": str(tokenizer), "TEXT": str(self.text), "THREADS": str(threads)}
        variables = {f"HOTSWAP_TEST_{name}": value for name, value in variables.items()}
        return self.run([*command, "--gtest_also_run_disabled_tests"], **variables)

    def python(self, code: str, model: Path) -> dict:
        return self.run([sys.executable, "-W", "ignore", "-c", code, model, self.text])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    add_flags(parser)
    args = parser.parse_args()
    import tokenizers

    report = Results(args)
    library = f"tokenizers {tokenizers.__version__}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = args.text or folder / "text.txt"
        if not args.text:
            text.write_text(default_text())
        size = text.stat().st_size / 1e6
        sides = Sides(args.build, text)
        contests = [(kind, file, library, LIBRARY, file, 2.0) for kind, file in train(folder, text).items()]
        try:
            import sentencepiece
        except ImportError:
            print("sentencepiece is not installed: no Unigram model")
        else:
            model = train_sentence_piece(folder, text)
            file = folder / "Unigram.json"
            contests.append(("Unigram", file, library, LIBRARY, file, 2.0))
            peer = f"sentencepiece {sentencepiece.__version__}"
            contests.append(("Unigram", file, peer, SENTENCE_PIECE, model, 0.8))
        shape = f"{size:.1f} MB, vocabulary {VOCABULARY}"
        for kind, file, peer, code, model, target in contests:
            rounds = [(sides.ours(file, 1), sides.python(code, model)) for _ in range(args.rounds)]
            ours, theirs = (statistics.median(size / r[side]["cpu"] for r in rounds) for side in (0, 1))
            report.add(kind="host", what=f"tokenizer: {kind}", shape=shape, threads=1, ours=round(ours, 2),
                       peer=round(theirs, 2), peer_name=peer, unit="MB/s", target=target)  # fmt: skip
        file = contests[0][1]
        rounds = [(sides.ours(file, 1)["cpu"], sides.ours(file, 2)["cpu"]) for _ in range(args.rounds)]
        one, two = (statistics.median(size / r[side] for r in rounds) for side in (0, 1))
        report.add(kind="host", what="tokenizer: batch on two threads", shape=shape, threads=2, ours=round(2 * two, 2),
                   peer=round(one, 2), peer_name="one thread", unit="MB/s", target=1.7)  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
