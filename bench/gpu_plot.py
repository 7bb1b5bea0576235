"""Pictures of GPU rows of results.csv, one a package: gpu_plot.py --csv FILE --date D... --out docs/pictures

Bars are shares of a copy of the same bytes in the same process (100%: as fast as memory); for losses and whole models,
where bytes are not the floor, speed relative to the slowest.
"""

import argparse
import csv
import json
from pathlib import Path

COLORS = {"ours": "#0b6e4f", "torch": "#e07a2f", "torch.compile": "#3d6fb4", "transformers": "#a23b72"}
COLORS["Liger"] = "#8a8a8a"
KERNELS = Path(__file__).resolve().parent.parent / "kernels"
BAR, GAP, LEFT, WIDTH = 13, 10, 250, 900


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


def who(name: str) -> str:
    return name.split(";")[0]


def groups_of(rows: list[dict]) -> list[tuple[str, list[tuple[str, float, str]]]]:
    """[(op and shape, [(who, share of the full width, text)])]"""
    found: dict = {}
    for row in rows:
        fresh = {"ours": float(row["ours"]), "share": row["memcpy_share"]}
        entry = found.setdefault((row["what"], row["shape"]), fresh)
        if row["peer"]:
            entry[who(row["peer_name"])] = float(row["peer"])
    out = []
    for (what, shape), entry in found.items():
        share = entry.pop("share")
        slowest = max(entry.values())
        bars = []
        for name in [n for n in COLORS if n in entry]:
            us = entry[name]
            time = f"{us:.0f} us" if us < 1e4 else f"{us / 1e3:.1f} ms"
            if share and what != "cross_entropy_fwd_":
                part = float(share) * entry["ours"] / us
                bars.append((name, part, f"{part:.0%}, {time}"))
            else:
                bars.append((name, entry["ours"] / us if us else 0, f"{slowest / us:.1f}x, {time}"))
        out.append((f"{what} {shape}", bars))
    return out


def svg(title: str, groups: list, machine: str) -> str:
    height = 64 + sum(len(bars) * BAR + GAP for _, bars in groups)
    scale = WIDTH - LEFT - 130
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="15">{title} on one {machine}</text>',
    ]
    x = 12
    for name in [n for n in COLORS if any(n == bar[0] for _, bars in groups for bar in bars)]:
        lines.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{COLORS[name]}"/>')
        lines.append(f'<text x="{x + 14}" y="39">{name}</text>')
        x += 26 + 7 * len(name)
    y = 54
    for label, bars in groups:
        lines.append(f'<text x="{LEFT - 8}" y="{y + BAR * len(bars) / 2 + 4:.0f}" text-anchor="end">{label}</text>')
        for name, part, text in bars:
            width = max(1.0, scale * min(part, 1.05))
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 2}" fill="{COLORS[name]}"/>')
            lines.append(f'<text x="{LEFT + width + 5:.0f}" y="{y + 9}">{text}</text>')
            y += BAR
        y += GAP
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--date", required=True, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open(args.csv) as file:
        rows = [r for r in csv.DictReader(file) if r["date"] in args.date and r["kind"] == "op"]
    packages, families = packages_by_op(), {}
    for row in rows:
        families.setdefault(package_of(row["what"], packages), []).append(row)
    for row in families.pop(None, []):
        print(f"no package has an op that {row['what']} begins with: not drawn")
    for package, mine in sorted(families.items()):
        out = args.out / f"gpu_{package}.svg"
        title = f"{package}, {', '.join(sorted({row['dtype'] for row in mine}))}"
        out.write_text(svg(title, groups_of(mine), mine[0]["machine"]))
        print(out)


if __name__ == "__main__":
    main()
