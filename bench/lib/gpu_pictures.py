"""SVG of bars in sections and of lines in panels, for gpu_plot.py: values come in, text goes out."""

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

COLORS = {"ours": "#0b6e4f", "torch": "#e07a2f", "torch.compile": "#3d6fb4", "transformers": "#a23b72"}
COLORS["Liger"] = "#8a8a8a"
OTHERS = ("#3d6fb4", "#e07a2f", "#a23b72", "#8a8a8a", "#b8a000", "#5b4a9c", "#1f9e9e", "#444444")  # for who has no color of his own
BAR, GAP, LEFT, WIDTH = 13, 10, 250, 900
CHAR = 6.4  # pixels of a letter of 11 points, in the widest of common fonts
HALO = {"stroke": "white", "stroke_width": 2, "paint_order": "stroke"}  # of words that lie on lines


class Bar(NamedTuple):
    who: str
    value: float
    text: str


class Panel(NamedTuple):
    title: str
    what: str
    lines: dict[str, list[tuple[int, float]]]  # who -> (length, rate), by length


def colors_of(names) -> dict[str, str]:
    """Ours first, who has a color of his own, then the others as they come."""
    names = list(dict.fromkeys(names))
    found = {name: color for name, color in COLORS.items() if name in names}
    free = [color for color in OTHERS if color not in found.values()]
    return found | dict(zip([name for name in names if name not in COLORS], free, strict=False))


def text(x: float, y: float, words: str, **more) -> str:
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def page(height: float, title: str, colors: dict[str, str], body: list[str], notes: list[str]) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
        text(12, 20, title, font_size=15),
    ]
    x = 12.0
    for name, color in colors.items():
        lines.append(f'<rect x="{x:.0f}" y="30" width="10" height="10" fill="{color}"/>')
        lines.append(text(x + 14, 39, name))
        x += 28 + 7 * len(name)
    lines += body
    for i, note in enumerate(notes):
        lines.append(text(12, height - 10 - 14 * (len(notes) - 1 - i), note, fill="#555"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def step_of(top: float) -> float:
    """Between grid lines, so that there are three to seven of them."""
    size = 10 ** math.floor(math.log10(top))
    return next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1, 2) if top / (size * part) <= 7)


def label_lines(label: tuple[str, str]) -> list[tuple[str, str]]:
    """What and shape in one line where that fits left of the bars; (words, color)."""
    whole = " ".join(label).strip()
    if len(whole) * CHAR <= LEFT - 20:
        return [(whole, "black")]
    return [(label[0], "black"), (label[1], "#555")]


def bars_svg(title: str, sections: dict[str, list], notes: list[str]) -> str:
    """sections: what the bars are -> [((what, shape), bars)]; each with an axis of its own that begins at 0."""
    every = [bar for groups in sections.values() for _, bars in groups for bar in bars]
    colors, body, y = colors_of(bar.who for bar in every), [], 50.0
    words = [line for groups in sections.values() for label, _ in groups for line, _ in label_lines(label)]
    left = max(LEFT, 20 + CHAR * max(map(len, words)))
    width = WIDTH - left - 12 - CHAR * max(len(bar.text) for bar in every)
    for says, groups in sections.items():
        top = max(bar.value for _, bars in groups for bar in bars)
        percent = "share" in says
        top = max(top, 1.0) if percent or "speed" in says else top
        scale, step = width / top, step_of(top)
        heights = [max(len(bars), len(label_lines(label))) * BAR + GAP for label, bars in groups]
        body.append(text(left, y + 12, says, font_weight="bold"))
        y += 30
        for i in range(int(top / step + 1e-6) + 1):
            x = left + i * step * scale
            body.append(f'<path d="M{x:.0f} {y}V{y + sum(heights):.0f}" stroke="#ddd"/>')
            body.append(text(x, y - 4, f"{i * step:.0%}" if percent else f"{i * step:g}", text_anchor="middle", fill="#555"))
        y += GAP / 2
        for (label, bars), height in zip(groups, heights, strict=True):
            lines = label_lines(label)
            first = y + (height - GAP - BAR * len(lines)) / 2 + 9
            for i, (words, color) in enumerate(lines):
                body.append(text(left - 8, first + i * BAR, words, text_anchor="end", fill=color))
            at = y + (height - GAP - BAR * len(bars)) / 2
            for bar in bars:
                length = max(1.0, scale * bar.value)
                body.append(
                    f'<rect x="{left:.1f}" y="{at:.1f}" width="{length:.1f}" height="{BAR - 2}" fill="{colors[bar.who]}"/>'
                )
                body.append(text(left + length + 5, at + 9, bar.text, **HALO))
                at += BAR
            y += height
        y += 6
    return page(y + 14 * len(notes) + 10, title, colors, body, notes)


class Axis(NamedTuple):
    """Of rates: marks, the first of which is the bottom and the last the top."""

    marks: list[float]
    log: bool

    def share(self, rate: float) -> float:
        of = math.log if self.log else float
        low, high = of(self.marks[0]), of(self.marks[-1])
        return (of(rate) - low) / (high - low)


def axis_of(rates: list[float], log: bool) -> Axis:
    if log:
        low, high = math.floor(math.log10(min(rates))), math.floor(math.log10(max(rates)))
        top = next(part * 10.0**high for part in (1, 2, 5, 10) if part * 10.0**high >= max(rates))
        return Axis([10.0**k for k in range(low, high + 1) if 10.0**k < top] + [top], log)
    step = step_of(max(rates))
    return Axis([k * step for k in range(math.ceil(max(rates) / step) + 1)], log)


def lines_svg(title: str, panels: list[Panel], unit: str, notes: list[str], of: str = "rows of a sequence", log: bool = False) -> str:
    """Lengths by powers of two, all rates from 0 to the same top. Who was measured at one length while others were at
    several is a level: it does not depend on the length. `log`: rates by powers of ten, and everybody's points alone."""
    colors = colors_of(who for panel in panels for who in panel.lines)
    columns = 3 if len(panels) % 3 == 0 else 2
    tall, room = 220, WIDTH / columns
    axis = axis_of([rate for panel in panels for line in panel.lines.values() for _, rate in line], log)
    body = []
    for i, panel in enumerate(panels):
        at = (46 + i % columns * room, 90 + i // columns * (tall + 90))
        body += panel_svg(panel, at, (room - 60, tall), (axis, of), colors)
    rows = math.ceil(len(panels) / columns)
    return page(90 + rows * (tall + 90) - 40 + 14 * len(notes), f"{title}, {unit}", colors, body, notes)


def panel_svg(panel: Panel, corner: tuple, size: tuple, axis: tuple, colors: dict[str, str]) -> list[str]:
    (left, y), (wide, tall), (rates, of) = corner, size, axis
    lengths = sorted({length for line in panel.lines.values() for length, _ in line})
    low, high = math.log2(lengths[0]), math.log2(lengths[-1])
    place = lambda n: left + 24 + (wide - 48) * ((math.log2(n) - low) / (high - low) if high > low else 0.5)
    height = lambda rate: y + tall * (1 - rates.share(rate))
    body = [text(left, y - 26, panel.title, font_weight="bold"), text(left, y - 12, panel.what, font_weight="bold")]
    for mark in rates.marks:
        at = height(mark)
        body.append(f'<path d="M{left:.0f} {at:.1f}h{wide:.0f}" stroke="{"#888" if mark == rates.marks[0] else "#ddd"}"/>')
        body.append(text(left - 6, at + 4, f"{mark:g}", text_anchor="end", fill="#555"))
    for n in lengths:
        body.append(text(place(n), y + tall + 16, f"{n // 1024}k" if n % 1024 == 0 else str(n), text_anchor="middle"))
    body.append(text(left + wide / 2, y + tall + 31, of, text_anchor="middle", fill="#555"))
    alone = {who: line[0][1] for who, line in panel.lines.items() if len(line) == 1 and len(lengths) > 1}
    levels = {} if rates.log else alone
    for who, rate in levels.items():
        shape = f'd="M{left:.0f} {height(rate):.1f}h{wide:.0f}" stroke="{colors[who]}"'
        body.append(f'<path {shape} stroke-dasharray="5 4" fill="none"/>')
        body.append(text(left + 4, height(rate) - 4, f"{rate:.0f}", fill=colors[who], **HALO))
    lines = {who: line for who, line in panel.lines.items() if who not in levels}
    best = {n: max(rate for line in lines.values() for m, rate in line if m == n) for n in lengths}
    for who, line in lines.items():
        path = "L".join(f"{place(n):.1f} {height(rate):.1f}" for n, rate in line)
        body.append(f'<path d="M{path}" stroke="{colors[who]}" stroke-width="2" fill="none"/>')
        body += [f'<circle cx="{place(n):.1f}" cy="{height(rate):.1f}" r="3" fill="{colors[who]}"/>' for n, rate in line]
    for who, line in lines.items():  # numbers above the lines of all
        for n, rate in line:
            at, look = height(rate), {"fill": colors[who], **HALO}
            if not rates.log:
                body.append(text(place(n), at + (16 if rate < best[n] else -8), f"{rate:.0f}", text_anchor="middle", **look))
                continue
            # beside the point; left of it where another's number is as high
            near = [other for other, its in lines.items() for m, r in its if m == n and r > rate and at - height(r) < 13]
            x, anchor = (place(n) - 8, "end") if near else (place(n) + 8, "start")
            body.append(text(x, at + 4, f"{rate:.0f}", text_anchor=anchor, **look))
    return body
