"""bench/gpu_plot.py: which rows a picture is of, how long bars are, and what it refuses."""

import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # of the package bench
from bench import gpu_plot  # noqa: E402

RUN = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\dZ), commit (\w+)")


def row(**fields) -> dict:
    common = {"date": "2026-01-01T00:00Z", "commit": "aaa", "machine": "GPU", "dtype": "bfloat16", "unit": "us"}
    return common | {"what": "op", "shape": "8x8", "peer": "", "peer_name": "", "memcpy_share": ""} | fields


def bars(svg: str) -> list[tuple[float, str]]:
    """(length, words) of each."""
    found = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="11"[^\n]*\n<text [^>]*>([^<]*)<', svg)
    return [(float(length), words) for length, words in found]


def near(a: float, b: float) -> bool:
    return abs(a - b) < 0.01 * b


def shares_and_the_latest() -> None:
    rows = [
        row(ours="20", peer="40", peer_name="theirs; 1.0", memcpy_share="0.5"),
        row(ours="8", peer="10", peer_name="a copy", memcpy_share="1.25", date="2026-01-02T00:00Z", commit="bbb"),
    ]
    svg = gpu_plot.picture("none", rows[::-1])
    got = bars(svg)
    # A copy took 10 us in both runs. Ours is of the later one, theirs of the only one that has it; no bar is cut at 100%.
    assert [words for _, words in got] == ["125%, 8.00 us (b)", "25%, 40.0 us (a)"], got
    assert near(got[0][0] / got[1][0], 5), got
    assert "a copy" not in re.findall(">([^<]*)<", svg)
    assert RUN.findall(svg) == [("2026-01-01T00:00Z", "aaa"), ("2026-01-02T00:00Z", "bbb")], svg


def rates_of_what_is_counted() -> None:
    shape = "Some 100x20x10 4 of 8"
    rows = [row(what="moe_experts_fwd_bwd", shape=shape, ours="1", peer="2", peer_name="theirs")]
    got = bars(gpu_plot.picture("moe", rows))
    # 6 * 400 rows * 20 * 10, three times that with backward, in 1 us and in 2
    assert [words for _, words in got] == ["1 TFLOP/s, 1.00 us", "1 TFLOP/s, 2.00 us"], got
    assert near(got[0][0] / got[1][0], 2), got
    assert gpu_plot.operations_of("moe")("moe_experts", shape) == 6 * 400 * 20 * 10
    assert gpu_plot.operations_of("moe")("moe_experts_decode", shape) is None


def speeds() -> None:
    peers = {"faster": "0.005", "slow": "1.5"}
    rows = [row(unit="ms", ours="0.010", peer=peer, peer_name=name) for name, peer in peers.items()]
    got = bars(gpu_plot.picture("none", rows))
    assert [words for _, words in got] == ["150x, 10 us", "300x, 5 us", "1.0x, 1.50 ms"], got
    assert near(got[1][0] / got[0][0], 2), got


def lines() -> None:
    made = lambda n, ours, peer, name: row(
        what="attention_forward", unit="TFLOP/s", shape=f"1x{n}, causal", ours=ours, peer=peer, peer_name=name
    )
    rows = [made(1024, "100", "90", "theirs"), made(4096, "50", "90", "theirs"), made(4096, "50", "200", "product")]
    svg = gpu_plot.picture("attention", rows)
    path = re.findall(r'd="M([\d. ]+)L([\d. ]+)"', svg)
    points = [[tuple(map(float, point.split())) for point in line] for line in path]
    assert len(points) == 2, svg  # ours and theirs; the product, of one length, is a level
    (_, high), (_, low) = points[0]
    floor = float(re.search(r'd="M[\d.]+ ([\d.]+)h[\d.]+" stroke="#888"', svg)[1])
    assert near((floor - high) / (floor - low), 2), points  # the axis begins at 0
    assert svg.count("stroke-dasharray") == 1 and ">4k<" in svg and ">1k<" in svg and ">2k<" not in svg


def generation() -> None:
    made = lambda batch, who, ours, peer="", name="": row(
        what=f"decode, {who}", unit="tokens/s", kind="model", shape=f"Some-1B {batch}x8+4", ours=ours, peer=peer, peer_name=name
    )
    rows = [made(1, "hotswap kernels", "1000"), made(16, "hotswap kernels", "10000", "100", "transformers"),
            made(1, "hotswap kernels", "1000", "10", "llama.cpp by Vulkan")]  # fmt: skip
    svg = gpu_plot.generation(rows)
    height = {float(y): words for y, words in re.findall(r'<text x="[\d.]+" y="([\d.]+)" text-anchor="end" fill="#555">(\d+)<', svg)}
    assert list(height.values()) == ["10", "100", "1000", "10000"], height  # by powers of ten, from the least to the most
    line = re.search(r'd="M([\d. ]+L[\d. ]+)"', svg)[1].split("L")
    (_, low), (_, high) = [tuple(map(float, point.split())) for point in line]
    marks = sorted(y for y in height)
    assert near(low - high, marks[1] - marks[0]), (low, high, marks)  # ten times as fast is one power
    assert "stroke-dasharray" not in svg and svg.count("<circle") == 4 and "C++ host, kernels" in svg  # one batch is a point


def refusals() -> None:
    for rows, words in (
        ([row(ours="1"), row(ours="1", machine="another")], "one machine; got GPU, another"),
        ([row(ours="1"), row(ours="1", unit="TFLOP/s")], "times or of rates"),
    ):
        try:
            gpu_plot.picture("none", rows)
        except SystemExit as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"expected a refusal with {words!r}; got a picture")


def pictures_are_of_rows() -> None:
    with open(ROOT / "bench/results.csv") as file:
        runs = {(line["date"], line["commit"]) for line in csv.DictReader(file)}
    pictures = {file: RUN.findall(file.read_text()) for file in sorted(ROOT.glob("docs/pictures/gpu_*.svg"))}
    assert any(pictures.values()), "no picture names its runs"
    for file, named in pictures.items():
        assert runs.issuperset(named), f"{file.name}: no rows of {set(named) - runs} in bench/results.csv"


if __name__ == "__main__":
    for test in (shares_and_the_latest, rates_of_what_is_counted, speeds, lines, generation, refusals, pictures_are_of_rows):
        test()
