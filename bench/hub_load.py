"""serve-hub under load: slow readers of large files, many clients at once, and how soon a small file comes meanwhile.

    hub_load.py [--program build/bin/hotswap] [--clients 300] [--slow 200] [--gigabytes 50] [--seconds 10] [--csv FILE]

A folder of sparse files is prepared and served. The slow readers ask for a large file each and read 16 KiB a second; then
every client asks for a small file over and over, each time on a connection of its own. Wanted: no request refused or broken,
the 99th percentile of a small request under a second, the server's resident memory at its highest under 512 MiB. The clients
run on the same cores as the server. Exit status 1 where one of these was missed.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the package bench is
from bench.lib.results import ROOT, Results, add_flags  # noqa: E402

LARGE = 5  # files
MAX_SECONDS, MAX_MIB = 1.0, 512


async def ask(port: int, path: str):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16384)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise OSError(head.split(b"\r\n")[0].decode())
    return reader, writer


async def slow(port: int, number: int, until: float, failures: list[str]) -> None:
    try:
        reader, writer = await ask(port, f"/acme/large/resolve/main/{number % LARGE}.bin")
        while time.monotonic() < until:
            if not await reader.read(16384):
                raise OSError("cut off")
            await asyncio.sleep(1)
        writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        failures.append(f"slow: {error!r}")


async def client(port: int, until: float, times: list[float], failures: list[str]) -> None:
    while time.monotonic() < until:
        start = time.monotonic()
        try:
            async with asyncio.timeout(30):
                reader, writer = await ask(port, "/acme/large/resolve/main/config.json")
                await reader.read()
                writer.close()
            times.append(time.monotonic() - start)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            failures.append(f"small: {error!r}")


async def load(port: int, args: argparse.Namespace) -> tuple[list[float], list[str]]:
    times: list[float] = []
    failures: list[str] = []
    until = time.monotonic() + args.seconds
    readers = [asyncio.create_task(slow(port, i, until, failures)) for i in range(args.slow)]
    await asyncio.sleep(1)
    await asyncio.gather(*(client(port, until, times, failures) for _ in range(args.clients)))
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return sorted(times), failures


async def first(port: int) -> None:
    reader, writer = await ask(port, "/acme/large/resolve/main/config.json")
    await reader.read()
    writer.close()


def fill(folder: Path, gigabytes: float) -> None:
    place = folder / "models/acme/large/main"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    for number in range(LARGE):
        with open(place / f"{number}.bin", "wb") as file:
            file.truncate(int(gigabytes * 1e9 / LARGE))


def measure(args: argparse.Namespace, report: Results) -> bool:
    shape = f"{args.clients} clients; {args.slow} slow; {args.gigabytes:g} GB"
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), args.gigabytes)
        start = time.monotonic()
        subprocess.run([args.program, "serve-hub", folder, "--prepare"], stdout=subprocess.DEVNULL, check=True)
        prepared = time.monotonic() - start
        server = subprocess.Popen([args.program, "serve-hub", folder, "--port", "0", "--quiet"], stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().strip().rpartition(":")[2])
            start = time.monotonic()
            asyncio.run(first(port))
            answered = time.monotonic() - start
            times, failures = asyncio.run(load(port, args))
            status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
        finally:
            server.terminate()
            server.wait()
    p99 = times[int(len(times) * 0.99)] if times else float("inf")
    print(f"prepared in {prepared:.1f} s, first answer after {answered:.3f} s; {len(times)} small requests, failures: {failures[:3]}")
    if times:
        print(f"p50 {times[len(times) // 2] * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, max {times[-1] * 1e3:.1f} ms; {peak:.0f} MiB")
    common = dict(kind="hub", shape=shape, threads=os.cpu_count())
    report.add(what="load: failed requests", ours=len(failures), unit=f"of {len(times) + len(failures)}", target="0", **common)
    limit = dict(peer_name="the limit", target=1, **common)
    report.add(what="load: small request, p99", ours=p99 * 1e3, peer=MAX_SECONDS * 1e3, unit="ms", **limit)
    report.add(what="load: peak memory", ours=peak, peer=MAX_MIB, unit="MiB", **limit)
    report.add(what="load: small requests", ours=len(times) / args.seconds, unit="1/s", **common)
    report.add(what="load: hashing ahead", ours=args.gigabytes / prepared, unit="GB/s", **common)
    return not failures and not report.missed()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/bin/hotswap")
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--gigabytes", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    add_flags(parser)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = Results(args)
    good = measure(args, report)
    report.write()
    sys.exit(not good)


if __name__ == "__main__":
    main()
