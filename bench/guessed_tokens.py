"""Decoding with guessed tokens on a CPU, and without, alternately: prompt lookup on summaries by the demo's model, the same ids.

    guessed_tokens.py --gguf FILE.gguf [--hotswap build/bin/hotswap] [--packages build/packages] [--dtype bfloat16] [--stock]
                      [--assistant MODEL] [--guess 10] [--new-tokens 160] [--threads 2] [--repeats 3] [--accepted FILE] [--csv FILE]

The file's weights as a folder of that dtype (gguf_folder.py; --folder: one that was made before). Each text below goes through the
model's chat template with the request to repeat what matters in it; runs are plain, guessed, plain, guessed. Nothing is
written where an id differs. --accepted keeps, of each text, how many tokens each forward gave, for a run elsewhere that replays them.
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
from bench.lib.results import Results, add_flags  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TEXTS = {
    "harbour": """The old harbour of Lindholm was closed to ships of more than forty metres in the spring of 1974, because the channel had filled
with sand. For eleven years the quay stood empty, and the warehouse at its end was used by the town to store benches and snow ploughs. In
1985 the boat builder Marta Ekdahl rented the warehouse from the town for one krona a year, on the condition that she would repair the
roof. She repaired the roof in one summer and began to build wooden boats of six metres, which she sold to the fishermen of the
neighbouring islands. By 1992 her yard had nine workers, and the town dredged the channel so that the larger boats of the yard could
sail to the sea. Since then the old harbour of Lindholm has been open again to ships of up to forty metres, and the warehouse is called
the Ekdahl yard.""",
    "meeting": """Notes of the meeting of the water board, 12 March. Present: Anna Brandt, Tomas Reuter, Ilse Kamp, Jan Vos. First, Tomas Reuter
reported that the pump at the northern lock has failed twice this winter, and that a new pump costs 48,000 euros. Second, Ilse Kamp
reported that the pump at the southern lock is in good order, and needs no repair before 2031. Third, the board decided to buy a new pump
for the northern lock, and to keep the old pump as a spare for the southern lock. Fourth, Jan Vos proposed that the walkway at the northern
lock be closed while the new pump is installed. Anna Brandt will inform the village. The next meeting of the water board is on 9 April.""",
    "manual": """To change the filter, first switch the machine off and wait ten minutes until the pressure gauge shows zero. Open the cover
with the grey key, and turn the filter to the left until it comes loose. Do not pull the filter while the pressure gauge shows more than
zero. Clean the seat of the filter with a dry cloth. Put the new filter on the seat, and turn it to the right until it clicks. Close the
cover with the grey key, switch the machine on, and check that the pressure gauge rises to four within one minute. If the pressure gauge
does not rise to four, switch the machine off, wait ten minutes, and turn the filter to the right once more.""",
}  # fmt: skip
REQUEST = "Summarize the following text. Keep its sentences where you can.\n\n"


def generated(args, model: list, messages: Path, extra: list) -> dict:
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1", HOTSWAP_PACKAGES=str(args.packages.resolve()))
    kernels = [] if args.stock else ["--use-kernels"]
    command = [args.hotswap, "generate", *model, "--messages", messages, "--max-new-tokens", args.new_tokens, "--json", *kernels, *extra]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment, timeout=900)
    if done.returncode:
        sys.exit(f"`{' '.join(map(str, command))}` failed with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def measured(args, model: list, folder: Path) -> dict:
    guesses = ["--assistant", args.assistant] if args.assistant else ["--prompt-lookup-num-tokens", args.guess]
    found = {}
    for name, text in TEXTS.items():
        messages = folder / f"{name}.json"
        messages.write_text(json.dumps([{"role": "user", "content": REQUEST + " ".join(text.split())}]))
        runs = [generated(args, model, messages, extra) for _ in range(args.repeats) for extra in ([], guesses)]
        if any(one["token_ids"] != runs[0]["token_ids"] for one in runs):
            sys.exit(f"the ids of '{name}' differ with guessed tokens; nothing is written")
        plain, guessed = ([one["decode_tokens_per_second"] for one in runs[first::2]] for first in (0, 1))
        last = runs[1]
        found[name] = {"plain": statistics.median(plain), "guessed": statistics.median(guessed), "accepted": last["accepted"]}
        count = len(last["token_ids"])
        print(f"{name:8} {count} tokens of {len(last['prompt_ids'])}: {found[name]['plain']:.1f} -> {found[name]['guessed']:.1f} tokens/s, "
              f"{found[name]['guessed'] / found[name]['plain']:.2f}x; {(count - 1) / len(last['accepted']):.2f} tokens a forward, "
              f"{last['guessed_tokens']} verified, {last['repeated_tokens']} repeated; plain {plain}, guessed {guessed}", flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--folder", type=Path, help="what gguf_folder.py made of the file before")
    parser.add_argument("--hotswap", type=Path, default=ROOT / "build/bin/hotswap")
    parser.add_argument("--packages", type=Path, default=ROOT / "build/packages")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--stock", action="store_true", help="torch's own layers on both sides")
    parser.add_argument("--assistant", help="a smaller model guesses, instead of prompt lookup")
    parser.add_argument("--guess", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--accepted", type=Path, help="write the tokens of each forward here")
    add_flags(parser)
    args = parser.parse_args()
    if not args.gguf and not args.folder:
        sys.exit("guessed_tokens: expected --gguf FILE or --folder DIR; got neither; `./x demo` prints where the demo's file is")
    report = Results(args)
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made) / "model"
        if not args.folder:
            done = subprocess.run([sys.executable, HERE / "gguf_folder.py", args.gguf, folder], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
        found = measured(args, [str(folder), "--dtype", args.dtype], Path(made))
    plain, guessed = (statistics.geometric_mean([one[side] for one in found.values()]) for side in ("plain", "guessed"))
    how = f"{'stock' if args.stock else 'kernels'}, {'an assistant' if args.assistant else f'prompt lookup of {args.guess}'}"
    report.add(kind="model", what=f"decode, {how}", shape="SmolLM2-135M summaries, batch 1", dtype=args.dtype, threads=args.threads,
               ours=guessed, peer=plain, peer_name="the same without guesses", unit="tokens/s", target=1.6)  # fmt: skip
    if args.accepted:
        args.accepted.write_text(json.dumps({name: one["accepted"] for name, one in found.items()}) + "\n")
    report.write()


if __name__ == "__main__":
    main()
