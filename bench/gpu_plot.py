"""Pictures of GPU rows of results.csv, one a package: gpu_plot.py --csv FILE --date D... --out docs/pictures

    --only attention,moe   these packages alone
    --shapes uniform       rows whose shape has this word alone
    --generation           instead: tokens/s over the batch, of gpu_generate.py's rows, into gpu_generation.svg

Times are bars: the share of a copy of the same bytes in the same process where the row has one (100%: as fast as memory),
else TFLOP/s where the package counts operations (operations() in its bench/<package>_picture.py), else speed, the fastest of a
group being full. Rates (TFLOP/s) over a length ("8x2048, causal") are lines. Of several dates each side's latest is
drawn, and says which run it is of.
"""

import argparse
import csv
import importlib.util
import json
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.gpu_pictures import Bar, Panel, bars_svg, lines_svg  # noqa: E402

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
MICROSECONDS = {"us": 1, "ms": 1e3}
COPY, RATE, SPEED = "share of a copy of the same bytes", "TFLOP/s", "speed, the fastest of a group is 1"


class Side(NamedTuple):
    value: float  # microseconds, or the rate
    says: str  # the time, with as many digits as the row has
    copy: float | None  # microseconds of a copy of as many bytes, in the same process
    run: tuple[str, str]  # date, commit


def packages_by_op() -> dict[str, str]:
    """{"rms_norm": "norm"}, from each package's layers.json."""
    found = {}
    for file in sorted(KERNELS.glob("*/layers.json")):
        for layer in json.loads(file.read_text())["layers"].values():
            if isinstance(layer, dict):  # else the name of another layer
                found |= dict.fromkeys(layer["ops"].values(), file.parent.name)
    return found


def package_of(what: str, packages: dict[str, str]) -> str | None:
    """By the longest op that the row's name begins with: rows name what they time, "rotary_fwd_bwd"."""
    ops = [op for op in packages if what.startswith(op)]
    return packages[max(ops, key=len)] if ops else None


def operations_of(package: str):
    """The package's own count of a row's operations; None where it has none."""
    file = KERNELS / package / f"bench/{package}_picture.py"
    if not file.exists():
        return lambda what, shape: None
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.operations


def time_text(number: float, unit: str) -> str:
    """Three digits; fewer where the row, of three digits behind the point, has no more."""
    if unit == "ms" and number < 1:
        return f"{number * 1e3:.0f} us"
    number, unit = (number / 1e3, "ms") if unit == "us" and number >= 1e3 else (number, unit)
    return f"{number:#.3g}".rstrip(".") + f" {unit}"


def sides_of(rows: list[dict]) -> dict[tuple, dict[str, Side]]:
    """{(what, shape, dtype): {who: its latest}}"""
    found: dict = {}
    for row in sorted(rows, key=lambda row: row["date"]):
        entry = found.setdefault((row["what"], row["shape"], row["dtype"]), {})
        unit, run = MICROSECONDS.get(row["unit"], 1), (row["date"], row["commit"])
        ours = float(row["ours"]) * unit
        side = lambda number: Side(float(number) * unit, time_text(float(number), row["unit"]), copy, run)
        # What is lost in cross_entropy_fwd_ is a pass of its own, not bytes that were moved slowly.
        counts = row["memcpy_share"] and row["what"] != "cross_entropy_fwd_"
        copy = float(row["memcpy_share"]) * ours if counts else None
        entry["ours"] = side(row["ours"])
        who = row["peer_name"].split(";")[0]
        if row["peer"] and who != "a copy":
            entry[who] = side(row["peer"])
    return found


def marks_of(groups: list[dict[str, Side]]) -> dict[tuple, str]:
    """A letter for each run; none where there is one."""
    runs = sorted({side.run for group in groups for side in group.values()})
    return {run: "" if len(runs) == 1 else f" ({chr(ord('a') + i)})" for i, run in enumerate(runs)}


def notes_of(marks: dict[tuple, str]) -> list[str]:
    """What stands below a picture: the runs, two a line."""
    runs = [f"{mark.strip()} {date}, commit {commit}".strip() for (date, commit), mark in marks.items()]
    runs[0] = "Rows of bench/results.csv: " + runs[0]
    return [";  ".join(runs[i : i + 2]) for i in range(0, len(runs), 2)]


def sections_of(found: dict, marks: dict, operations) -> dict[str, list]:
    """{what the bars are: [(label, bars)]}"""
    types = {dtype for _, _, dtype in found}
    sections: dict = {RATE: [], COPY: [], SPEED: []}
    for (what, shape, dtype), group in found.items():
        count = operations(what, shape)
        fastest, slowest = min(s.value for s in group.values()), max(s.value for s in group.values())
        kind = COPY if any(s.copy for s in group.values()) else RATE if count else SPEED
        bars = []
        for who, side in group.items():
            us = side.value
            if kind == COPY:
                part, says = side.copy / us, f"{side.copy / us:.0%}"
            elif kind == RATE:
                part = count / us / 1e6
                says = f"{part:.0f} TFLOP/s"
            else:
                times = slowest / us
                part, says = fastest / us, f"{times:.0f}x" if times >= 9.95 else f"{times:.1f}x"
            bars.append(Bar(who, part, f"{says}, {side.says}{marks[side.run]}"))
        label = what if len(types) == 1 else f"{what}, {dtype}"
        sections[kind].append(((label, shape), bars))
    return {kind: groups for kind, groups in sections.items() if groups}


def panels_of(found: dict, marks: dict) -> list[Panel]:
    """Lengths from shapes like "8x2048, 16 heads of 128, causal"; what has no length is not drawn."""
    panels: dict = {}
    for (what, shape, dtype), group in found.items():
        rows, _, rest = shape.partition(", ")
        length = rows.split("x")[-1]
        if not length.isdigit():
            print(f"{what} {shape}: no length, not drawn")
            continue
        for who, side in group.items():
            panel = panels.setdefault((what, rest, marks[side.run]), {})
            panel.setdefault(who, []).append((int(length), side.value))
    return [Panel(what + mark, rest, {who: sorted(line) for who, line in lines.items()})
            for (what, rest, mark), lines in panels.items()]  # fmt: skip


def picture(package: str, rows: list[dict]) -> str:
    rates = [row for row in rows if row["unit"] not in MICROSECONDS]
    if rates and len(rates) < len(rows):
        raise SystemExit(f"{package}: expected rows of times or of rates; got both; name dates that have one of them")
    machines = {row["machine"] for row in rows}
    if len(machines) > 1:
        raise SystemExit(f"{package}: expected rows of one machine; got {', '.join(sorted(machines))}; name fewer dates")
    title = f"{package}, {', '.join(sorted({row['dtype'] for row in rows}))} on one {machines.pop()}"
    found = sides_of(rows)
    marks = marks_of(list(found.values()))
    if rates:
        return lines_svg(title, panels_of(found, marks), rates[0]["unit"], notes_of(marks))
    return bars_svg(title, sections_of(found, marks, operations_of(package)), notes_of(marks))


SIDES = {"hotswap kernels": "C++ host, kernels", "hotswap stock": "C++ host, stock", "transformers generate": "hotswap.generate",
         "hotswap kernels uncaptured": "C++ host, not captured", "transformers hotswap": "transformers, kernels",
         "transformers compile": "transformers, compiled", "transformers continuous": "transformers, continuous batching",
         "transformers paged": "transformers, continuous batching, kernels"}  # fmt: skip


def generation(rows: list[dict]) -> str:
    """Shapes are "Qwen3-0.6B 16x512+128": the batch, the prompt, the new tokens. A model at one batch alone is not drawn."""
    panels: dict = {}
    for row in rows:
        what, _, who = row["what"].partition(", ")
        if what != "decode":
            continue
        model, sizes = row["shape"].split(" ")
        batch, _, tokens = sizes.partition("x")
        lines = panels.setdefault((model, "prompt of {} tokens, {} more".format(*tokens.split("+"))), {})
        for side, rate in ((who, row["ours"]), (row["peer_name"], row["peer"])):
            if rate:
                lines.setdefault(SIDES.get(side, side), {})[int(batch)] = float(rate)
    panels = {names: lines for names, lines in panels.items() if len({n for line in lines.values() for n in line}) > 1}
    drawn = [Panel(*names, {who: sorted(line.items()) for who, line in lines.items()}) for names, lines in panels.items()]
    one = rows[0]
    title = f"decoding, {one['dtype']} on one {one['machine']}"
    runs = dict.fromkeys(f"{row['date']}, commit {row['commit']}" for row in rows)
    notes = [f"Rows of bench/results.csv, each side's latest: {'; '.join(runs)}", "Tokens of all sequences together"]
    return lines_svg(title, drawn, "tokens/s", notes, of="sequences at a time", log=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--date", required=True, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda s: s.split(","), help="these packages alone")
    parser.add_argument("--shapes", default="", help="rows whose shape has this word alone")
    parser.add_argument("--generation", action="store_true")
    args = parser.parse_args()
    if args.generation:
        with open(args.csv) as file:
            rows = [r for r in csv.DictReader(file) if r["date"] in args.date and r["kind"] == "model" and "+" in r["shape"]]
        out = args.out / "gpu_generation.svg"
        out.write_text(generation(rows))
        print(out)
        return
    with open(args.csv) as file:
        rows = [r for r in csv.DictReader(file) if r["date"] in args.date and r["kind"] == "op"]
    packages, families = packages_by_op(), {}
    for row in rows:
        if not args.shapes or args.shapes in row["shape"].split():
            families.setdefault(package_of(row["what"], packages), []).append(row)
    for row in families.pop(None, []):
        print(f"no package has an op that {row['what']} begins with: not drawn")
    for package, mine in sorted(families.items()):
        if args.only and package not in args.only:
            continue
        out = args.out / f"gpu_{package}.svg"
        out.write_text(picture(package, mine))
        print(out)


if __name__ == "__main__":
    main()
