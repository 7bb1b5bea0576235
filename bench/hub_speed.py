"""Our Hub client beside huggingface_hub and kernels, over loopback, in one run: how, in bench/METHOD.md.

    hub_speed.py --build build [--megabytes 2000] [--rounds 5] [--csv FILE]

A `serve-hub` of random files serves both sides, which take turns: a cold snapshot of a model, each time into an empty
cache, and one kernel by its version that the cache has already.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import ROOT, Results, add_flags  # noqa: E402

SHARDS = 4
SNAPSHOT = """
import json, os, sys, time
from huggingface_hub import snapshot_download
start = time.perf_counter()
folder = snapshot_download(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - start, "folder": folder}))
"""
KERNEL = """
import json, statistics, sys, time
import kernels
kernels.get_kernel(sys.argv[1], version=1, backend="cpu")
times = []
for _ in range(20):
    start = time.perf_counter()
    module = kernels.get_kernel(sys.argv[1], version=1, backend="cpu")
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(times), "folder": module.__file__}))
"""


def make_hub(folder: Path, packages: Path, megabytes: int) -> None:
    model = folder / "models/acme/big/main"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    for shard in range(SHARDS):
        with open(model / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors", "wb") as out:
            for _ in range(megabytes // SHARDS):
                out.write(os.urandom(1_000_000))
    shutil.copytree(packages / "norm/build", folder / "kernels/acme/norm/v1/build")
    (folder / "trusted_publishers.txt").write_text("acme\n")


class Sides:
    def __init__(self, build: Path, url: str, work: Path):
        self.build, self.work, self.runs = build, work, 0
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "KERNELS_"))}
        self.environment |= {"HF_ENDPOINT": url, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "no_proxy": "127.0.0.1"}

    def run(self, command: list, repo: str, cache: Path) -> dict:
        environment = self.environment | {"HF_HOME": str(cache), "HOTSWAP_TEST_REPO": repo}
        done = subprocess.run(
            [str(c) for c in command], env=environment, stdout=subprocess.PIPE, text=True, timeout=600
        )
        line = next((l for l in done.stdout.splitlines() if l.startswith('{"seconds"')), None)
        if done.returncode or line is None:
            sys.exit(f"hub_speed: {command[0]} failed with {done.returncode}: {done.stdout[-2000:]}")
        return json.loads(line)

    def ours(self, test: str, repo: str, cache: Path) -> dict:
        program = self.build / "bin/hub_test"
        return self.run(
            [program, f"--gtest_filter=HubSpeed.DISABLED_{test}", "--gtest_also_run_disabled_tests"], repo, cache
        )

    def python(self, code: str, repo: str, cache: Path) -> dict:
        return self.run([sys.executable, "-W", "ignore", "-c", code, repo], repo, cache)

    def fresh(self) -> Path:
        self.runs += 1
        return self.work / f"cache{self.runs}"


def same_files(a: str, b: str) -> bool:
    names = sorted(p.name for p in Path(a).iterdir())
    return names == sorted(p.name for p in Path(b).iterdir()) and all(
        subprocess.run(["cmp", "-s", Path(a) / n, Path(b) / n]).returncode == 0 for n in names
    )


def measure(args, sides: Sides, report: Results, asked) -> None:
    times = {"ours": [], "peer": []}
    for turn in range(args.rounds):
        ours_cache, peer_cache = sides.fresh(), sides.fresh()
        ours = sides.ours("Snapshot", "acme/big", ours_cache)
        peer = sides.python(SNAPSHOT, "acme/big", peer_cache)
        if turn == 0 and not same_files(ours["folder"], peer["folder"]):
            sys.exit("hub_speed: the two snapshots differ")
        times["ours"].append(ours["seconds"])
        times["peer"].append(peer["seconds"])
        for cache in (ours_cache, peer_cache):
            shutil.rmtree(cache)
    ours, peer = (statistics.median(times[side]) for side in ("ours", "peer"))
    # Of each turn: what else the machine does meets both sides of it.
    ratio = statistics.median(p / o for o, p in zip(times["ours"], times["peer"]))
    print(f"snapshot, seconds: ours {times['ours']}, huggingface_hub {times['peer']}")
    report.add(
        kind="hub", what="cold snapshot", shape=f"{args.megabytes} MB, {SHARDS} files", dtype="", threads=8, unit="s",
        ours=round(ours, 3), peer=round(peer, 3), peer_name="huggingface_hub", ratio=ratio, target=1.5,
    )  # fmt: skip

    ours_cache, peer_cache = sides.fresh(), sides.fresh()
    sides.ours("Kernel", "acme/norm", ours_cache)
    before = asked()
    ours = sides.ours("Kernel", "acme/norm", ours_cache)
    if asked() != before:
        sys.exit(f"hub_speed: expected 0 requests for 401 warm calls of ours; got {asked() - before}")
    peer = sides.python(KERNEL, "acme/norm", peer_cache)["seconds"]
    report.add(
        kind="hub", what="warm resolve", shape="acme/norm, version 1", dtype="", threads=1, unit="ms",
        ours=round(1e3 * ours["seconds"], 4), peer=round(1e3 * peer, 4), peer_name="kernels",
        target=50,
    )  # fmt: skip
    report.add(  # theirs verifies nothing
        kind="hub", what="warm get, verified", shape="acme/norm, version 1", dtype="", threads=1, unit="ms",
        ours=round(1e3 * ours["verified"], 4), peer=round(1e3 * peer, 4), peer_name="kernels",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    add_flags(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_hub(work / "hub", args.build / "packages", args.megabytes)
        log = work / "log"
        with open(log, "w") as out:
            server = subprocess.Popen(
                [args.build / "bin/hotswap", "serve-hub", work / "hub", "--port", "0"],
                stdout=subprocess.PIPE, stderr=out, text=True,
            )  # fmt: skip
        try:
            url = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            for kind, repo in (("models", "big"), ("kernels", "norm")):  # it hashes at the first request
                urllib.request.urlopen(f"{url}/api/{kind}/acme/{repo}/refs").read()
            report = Results(args)
            measure(args, Sides(args.build, url, work), report, lambda: len(log.read_text().splitlines()))
        finally:
            server.terminate()
            server.wait()
    report.write()


if __name__ == "__main__":
    main()
