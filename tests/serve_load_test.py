"""`hotswap serve` under load on the loopback, with a tiny model of drawn weights: thousands of requests, slow readers, hundreds of
requests at once, a thousand open streams, clients that hang up, bodies that are rubbish or too large, kill -9 and a start on the
same port. No page of keys and values may stay in use, and the process may not grow with its requests.

    serve_load_test.py --build build --python .venv/bin/python   # by hand: ctest does not run it

HOTSWAP_TEST_REQUESTS is how many requests are counted for growth (2000 where it is not set; 10000 for a release). --python has
torch, transformers and tokenizers for the model. More of load, in one process, where blocks of the heap are counted one by one:
hotswap/serve/load_test.cpp.
"""

import argparse
import atexit
import concurrent.futures
import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serve_clients_test import MAKE_MODEL, Server

STREAMS, CLIENTS, PARTS = 1000, 8, 8
BODY = {"prompt": "ab", "temperature": 0, "ignore_eos": True}


class Loaded(Server):
    def __init__(self, build: Path, model: str, *arguments: str):
        self.log = tempfile.TemporaryFile("w+")  # a pipe without a reader would stop the server
        command = [build / "bin/hotswap", "serve", model, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        atexit.register(self.process.kill)
        line = self.process.stdout.readline()
        self.log.seek(0)
        assert line.startswith("listening on http://127.0.0.1:"), (line, self.log.read())
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(row for row in text.splitlines() if row.startswith(name + ":")).split()[1])

    def memory(self) -> str:
        return f"{self.status('VmRSS') / 1024:.1f} MB in {self.status('Threads')} threads"

    def sent(self, body: dict, path: str = "/v1/completions") -> socket.socket:
        text = json.dumps(body).encode()
        out = socket.create_connection(("127.0.0.1", self.port), timeout=300)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        out.sendall(head.encode() + text)
        return out


def until(connection: socket.socket, mark: bytes) -> bytes:
    text = b""
    while mark not in text:
        more = connection.recv(65536)
        if not more:
            break
        text += more
    return text


def slow_readers(server: Loaded, count: int = 200) -> None:
    """Streams of which no byte is read until another client has its answer; then a few bytes at a time."""
    start = time.monotonic()
    slow = [server.sent({**BODY, "max_tokens": 64, "stream": True}) for _ in range(count)]
    quick = until(server.sent({**BODY, "max_tokens": 3}), b'"usage"')
    assert b" 200 OK" in quick and b"completion_tokens" in quick, quick
    waited = time.monotonic() - start
    texts = [b""] * count
    while slow and any(b"data: [DONE]" not in text for text in texts):
        for i, stream in enumerate(slow):
            if b"data: [DONE]" not in texts[i]:
                more = stream.recv(1024)
                assert more, texts[i][-500:]
                texts[i] += more
    for stream in slow:
        stream.close()
    server.expect_idle()
    all_read = time.monotonic() - start
    print(f"{count} slow readers: another client had its answer after {waited:.1f} s, they theirs after {all_read:.1f} s;", server.memory())


def at_once(server: Loaded, count: int = 300) -> None:
    start = time.monotonic()

    def one(_: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": 8}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status if json.loads(text)["usage"]["completion_tokens"] == 8 else 0

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        statuses = list(pool.map(one, range(count)))
    assert statuses == [200] * count, statuses
    server.expect_idle()
    print(f"{count} requests at once: all answered after {time.monotonic() - start:.1f} s;", server.memory())


def open_streams(server: Loaded) -> None:
    start = time.monotonic()
    streams = [server.sent({**BODY, "max_tokens": 8, "stream": True}) for _ in range(STREAMS)]
    answers = [until(stream, b"data: [DONE]") for stream in streams]  # one after the other: the others are open all the time
    peak = server.memory()
    bad = [answer for answer in answers if b"data: [DONE]" not in answer]
    assert not bad, (len(bad), bad[0][:500])
    for stream in streams:
        stream.close()
    server.expect_idle()
    print(f"{STREAMS} open streams: all whole after {time.monotonic() - start:.1f} s; {peak}")


def hang_ups(server: Loaded) -> None:
    for stream in (True, False):
        running = [server.sent({**BODY, "max_tokens": 900, "stream": stream}) for _ in range(300)]
        if stream:
            until(running[0], b"data: ")
        for connection in running:
            connection.close()
        server.expect_idle()
    print("600 hang-ups, half of them of streams: no page in use afterwards;", server.memory())


def rubbish(server: Loaded) -> None:
    draw = random.Random(0)
    whole = json.dumps({**BODY, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logit_bias": {"5": 1}}).encode()
    seen: dict[int, int] = {}
    for i in range(400):
        body = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):  # bytes changed, left out, or many more
            at = draw.randrange(len(body))
            body[at : at + draw.randrange(3)] = bytes(draw.choice(b'{}[]":,0e-\\\x00\xff') for _ in range(draw.randrange(4)))
        if i % 100 == 99:
            body = bytearray(b'{"prompt": "') + b"a" * (9 << 20) + b'"}'
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        try:
            path = draw.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/responses", "/apply_template"])
            connection.request("POST", path, bytes(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            seen[answer.status] = seen.get(answer.status, 0) + 1
            assert answer.status < 500, (answer.status, bytes(body)[:500], text)
            assert answer.status == 200 or json.loads(text)["error"]["message"], text
        except (ConnectionError, BrokenPipeError):
            assert len(body) > 8 << 20, bytes(body)[:500]  # refused while it was still being sent
        connection.close()
    server.expect_idle()
    print(f"rubbish: answers by status {dict(sorted(seen.items()))};", server.memory())


def many_requests(server: Loaded, count: int) -> None:
    kinds = [
        ("/v1/completions", {**BODY, "max_tokens": 4}),
        ("/v1/completions", {**BODY, "max_tokens": 3, "logprobs": 3, "n": 2, "temperature": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logit_bias": {"7": 3}}),
        ("/v1/completions", {**BODY, "max_tokens": 0}),  # an error
        ("/tokenize", {"prompt": "ab"}),
    ]

    def some(thread: int, each: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        for i in range(each):
            path, body = kinds[(thread + i) % len(kinds)]
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (400 if body.get("max_tokens") == 0 else 200), answer.status
        connection.close()

    def run(requests: int) -> int:  # -> kB in memory
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(some, thread, requests // CLIENTS) for thread in range(CLIENTS)]:
                done.result()
        server.expect_idle()
        return server.status("VmRSS")

    # A leak is in each part. What comes once is in some, on a busy machine in half of them: 100 kB for one more thread that is
    # busy at the same time as the others, 2 MB for one more cache of the tokenizer's words, of which threads that encode at the
    # same time have one each; what is free of them stays with the thread's arena of glibc's. So the lowest quarter counts.
    start = time.monotonic()
    part = count // PARTS
    sizes = [run(count // 4)] + [run(part) for _ in range(PARTS)]
    rate = count * 1.25 / (time.monotonic() - start)
    growth = [later - earlier for earlier, later in zip(sizes, sizes[1:])]
    print(f"{count} requests, {rate:.0f} a second: kB more after each {part} of them: {growth};", server.memory())
    # What a request holds is hundreds of bytes: its tokens, its settings. Below 64 kB the pages of threads' free blocks vary.
    assert sorted(growth)[PARTS // 4] <= max(64, part * 64 / 1024), "it grows with its requests"


def killed(build: Path, model: str, server: Loaded) -> None:
    running = [server.sent({**BODY, "max_tokens": 900, "stream": True}) for _ in range(20)]
    until(running[0], b"data: ")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    start = time.monotonic()
    again = Loaded(build, model, "--port", str(server.port), "--served-model-name", "tiny")
    answer = until(again.sent({**BODY, "max_tokens": 2, "stream": True}), b"[DONE]")
    assert b"[DONE]" in answer, answer
    print(f"kill -9 with 20 streams open: the next server answers on the same port {time.monotonic() - start:.1f} s after it was started")
    again.expect_idle()
    again.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    arguments = parser.parse_args()
    build, count = arguments.build.resolve(), int(os.environ.get("HOTSWAP_TEST_REQUESTS", "2000"))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([arguments.python, "-c", MAKE_MODEL, folder], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        server = Loaded(build, folder, "--port", "0", "--served-model-name", "tiny", "--rows", "16", "--queue", "2000")
        many_requests(server, count)  # first: the threads of a thousand streams have memory of their own
        slow_readers(server)
        at_once(server)
        open_streams(server)
        hang_ups(server)
        rubbish(server)
        killed(build, folder, server)


if __name__ == "__main__":
    main()
