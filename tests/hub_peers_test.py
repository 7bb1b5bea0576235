"""Other people's clients against `hotswap serve-hub`, and ours through other people's proxies.

    hub_peers_test.py --build build --python .venv/bin/python

huggingface_hub, kernels, transformers and olah, each in its newest release and the first two in the oldest that is
supported, come by pip into environments of their own below build/peers, which are kept for the next run; torch is the one
that --python has. Every step prints what it did, and the releases are printed at the end. Where pip reaches no index, nothing
is tested, and that is said (exit status 77).
"""

import argparse
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

# Releases by what they are for. No number: the newest. 0.30 is the oldest huggingface_hub whose calls are those of today;
# kernels 0.15.1 the oldest that takes variants of torch's stable ABI, on the oldest huggingface_hub that it works with.
PEERS = {
    "newest": ["huggingface_hub", "kernels"],
    "oldest-hub": ["huggingface_hub==0.30.0"],
    "oldest-kernels": ["huggingface_hub==1.10.0", "kernels==0.15.1"],
    "transformers": ["transformers"],
    "olah": ["olah"],
}
MANY = 1200  # files: more than one page of a list

# No end token: a model of drawn weights may answer with it at any step, and the tests count tokens.
MAKE_MODEL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
sizes = dict(vocab_size=64, hidden_size=36, intermediate_size=48, num_attention_heads=9, num_key_value_heads=3, eos_token_id=None)
LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes)).save_pretrained(sys.argv[1])
"""

# What huggingface_hub says of every kind of question. Old releases know less; what they lack is not asked.
HUB = """
import inspect, json, sys, tempfile
from pathlib import Path
import huggingface_hub as hh
commit, many = sys.argv[1], int(sys.argv[2])
api = hh.HfApi(token="hf_any")
info = api.model_info("acme/tiny", files_metadata=True)
assert info.sha == commit, info.sha
assert {s.rfilename for s in info.siblings} >= {"config.json", "model.safetensors"}
assert api.repo_exists("acme/tiny") and not api.repo_exists("acme/none")
assert api.file_exists("acme/tiny", "config.json") and not api.file_exists("acme/tiny", "none")
assert api.revision_exists("acme/tiny", "main") and not api.revision_exists("acme/tiny", "v9")
assert [b.name for b in api.list_repo_refs("acme/tiny").branches] == ["main"]
assert [p.path for p in api.get_paths_info("acme/tiny", ["config.json", "none"])] == ["config.json"]
assert api.list_repo_commits("acme/tiny")[0].commit_id == commit
assert len(list(api.list_repo_tree("acme/many", recursive=True, repo_type="dataset"))) == many, "every page"
assert "acme/tiny" in [m.id for m in api.list_models(author="acme", search="tin")]
assert api.whoami()["name"]
api.auth_check("acme/tiny")
folder = Path(hh.snapshot_download("acme/tiny"))
assert folder.name == commit and (folder / "model.safetensors").stat().st_size > 1000
one = hh.hf_hub_download("acme/tiny", "config.json")
assert Path(one).parent == folder, "nothing twice"
assert hh.hf_hub_download("acme/table", "data.csv", repo_type="dataset")
for wrong in (hh.utils.RepositoryNotFoundError, "acme/none", "config.json"), (hh.utils.EntryNotFoundError, "acme/tiny", "none"):
    try:
        hh.hf_hub_download(*wrong[1:])
    except wrong[0]:
        continue
    raise AssertionError(f"{wrong} was found")
warnings = hh.scan_cache_dir().warnings
assert not warnings, warnings
print("every question answered")
"""

# A kernel by its name, run; then as each lock of ours has it, downloaded and loaded; then a lock of its own of the first
# project. To torch this is a machine without a GPU's toolkit: kernels wants a CUDA variant wherever torch is built for CUDA.
KERNELS = """
import sys
from pathlib import Path
import torch
torch.version.cuda = None
import kernels, kernels.cli
def run(norm):
    x, w = torch.arange(12.).reshape(3, 4), torch.ones(4)
    before = norm._ops.ops.call_count("rms_norm")
    torch.testing.assert_close(norm.rms_norm(x, w, 1e-6, 0.0, "llama"), x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))
    assert norm._ops.ops.call_count("rms_norm") == before + 1
def cli(*words):
    sys.argv = ["kernels", *words]
    try:
        kernels.cli.main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
ours, theirs, *known = sys.argv[1:]
trust = {"trust_remote_code": True} if known else {}  # who is trusted is asked of the Hub, but not by old releases
for wanted in {"version": 1}, {"revision": "main"}, {"revision": "v1.0.0"}:
    run(kernels.get_kernel("acme/norm", **wanted, **trust))
cli("download", ours)
by_lock = "by our lock"
try:
    run(kernels.load_kernel("acme/norm", lockfile=Path(ours) / "kernels.lock"))
except FileNotFoundError as error:
    if type(error.__cause__).__name__ != "IncompleteSnapshotError":
        raise
    by_lock = "not by our lock: huggingface_hub requires every variant of a repository in the cache, and kernels downloads one"
cli("lock", theirs)
print("run by version, branch and tag;", by_lock)
"""

TRANSFORMERS = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("acme/tiny")
same = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.arange(5)[None]
torch.testing.assert_close(model(ids).logits, same(ids).logits)
print("the model that was served, by its logits")
"""


def fail(text: str) -> None:
    sys.exit(f"hub_peers_test: {text}")


def run(*command, env: dict, timeout: int = 240, wanted: int = 0) -> str:
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=timeout)
    if done.returncode != wanted:
        fail(f"expected status {wanted}; got {done.returncode} from {' '.join(str(c) for c in command)[:300]}\n{done.stdout}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def without_hub(more: dict) -> dict:
    hidden = ("HF_", "KERNELS_CACHE", "LOCAL_KERNELS", "HOTSWAP_", "SSL_CERT", "REQUESTS_CA", "PYTHONPATH", "VIRTUAL_ENV")
    # Without telemetry kernels 0.17.2 sends a User-Agent that ends in a blank, which httpx refuses.
    hidden += ("DISABLE_TELEMETRY", "DO_NOT_TRACK")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "no_proxy": "127.0.0.1,localhost"}
    return kept | quiet | more


class Environments:
    def __init__(self, folder: Path, python: Path):
        self.folder, self.python = folder, python
        inside = "import sys; print(*(p for p in sys.path if p.endswith('-packages')), sep='\\n')"
        self.torch = subprocess.run([python, "-c", inside], check=True, capture_output=True, text=True).stdout
        self.versions, self.made = {}, {}

    def index_answers(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            ask = [self.python, "-m", "pip", "download", "-q", "--no-deps", "--retries=0", "-d", folder, PEERS["oldest-hub"][0]]
            return subprocess.run(ask, capture_output=True).returncode == 0

    def make(self, name: str) -> Path:
        """The environment's Python, with its own releases before those of --python; brought up to date once a run."""
        if name in self.made:
            return self.made[name]
        place = self.folder / name
        self.made[name] = python = place / "bin/python"
        if not python.exists():
            run(self.python, "-m", "venv", place, env=without_hub({}))
        (site,) = place.glob("lib/python*/site-packages")
        around = site / "around.pth"
        around.unlink(missing_ok=True)  # pip must not take what --python has for its own
        # --no-compile: transformers has thousands of modules, of which a step imports some; those are compiled as they are.
        run(python, "-m", "pip", "install", "-q", "--no-compile", "--upgrade", *PEERS[name], env=without_hub({}), timeout=900)
        around.write_text(self.torch)
        listed = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
        names = [requirement.split("==")[0] for requirement in PEERS[name]]
        self.versions[name] = run(python, "-c", listed, *dict.fromkeys([*names, "huggingface_hub"]), env=without_hub({})).strip()
        return python


class TlsProxy:
    """Ends TLS before `port`, as nginx does: says so in X-Forwarded-Proto and -Host of the first request of a connection,
    and asks for one request a connection."""

    def __init__(self, folder: Path, port: int):
        self.certificate, key = folder / "proxy.pem", folder / "proxy.key"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-keyout", key, "-out", self.certificate, env=os.environ)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.context, self.to = context, port
        self.url = f"https://localhost:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client, _ = self.listening.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, plain: socket.socket) -> None:
        try:
            with self.context.wrap_socket(plain, server_side=True) as client:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += client.recv(65536) or b"\r\n\r\n"
                lines, _, body = head.partition(b"\r\n\r\n")
                kept = [line for line in lines.split(b"\r\n") if not line.lower().startswith((b"connection:", b"host:"))]
                host = self.url.removeprefix("https://").encode()
                kept += [b"Host: inner.example", b"Connection: close", b"X-Forwarded-Proto: https", b"X-Forwarded-Host: " + host]
                with socket.create_connection(("127.0.0.1", self.to)) as server:
                    server.sendall(b"\r\n".join(kept) + b"\r\n\r\n" + body)
                    length = next((int(line.split(b":")[1]) for line in kept if line.lower().startswith(b"content-length:")), 0)
                    while len(body) < length:
                        more = client.recv(65536)
                        body += more
                        server.sendall(more)
                    while data := server.recv(65536):
                        client.sendall(data)
        except OSError:
            pass  # a client that has what it wanted


class Peers:
    def __init__(self, build: Path, python: Path, work: Path):
        self.hotswap, self.work, self.python = build / "bin/hotswap", work, python
        self.environments = Environments(build / "peers", python)
        self.processes = []
        self.hub = work / "hub"

    def fill(self, build: Path) -> None:
        run(self.python, "-c", MAKE_MODEL, self.hub / "models/acme/tiny/main", env=without_hub({}))
        many = self.hub / "datasets/acme/many/main"
        many.mkdir(parents=True)
        for n in range(MANY):
            (many / f"{n:04}.txt").write_text(str(n))
        (self.hub / "datasets/acme/table/main").mkdir(parents=True)
        (self.hub / "datasets/acme/table/main/data.csv").write_text("a,b\n1,2\n")
        # One variant: of a repository with several, Python's kernels refuses offline what it has fetched itself (docs/formats.md).
        norm = self.work / "norm"
        shutil.copytree(build / "packages/norm", norm, ignore=lambda _, names: [n for n in names if n.startswith("torch-") and "-cpu-" not in n])
        run(self.hotswap, "hub", "publish", norm, self.hub, "--as", "acme/norm", "--tag", "v1.0.0", env=without_hub({}))
        (self.hub / "trusted_publishers.txt").write_text("acme\n")
        (self.work / "ids.json").write_text("[1, 2, 3]")

    def start(self, *command, port: int | None = None, env: dict | None = None) -> subprocess.Popen:
        log = open(self.work / f"log{len(self.processes)}", "w")
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE if port is None else log, stderr=log, text=True, env=env, cwd=self.work)
        self.processes.append(process)
        for _ in range(300):
            if port is None:
                break
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                fail(f"{command[0]} ended: {Path(log.name).read_text()}")
            time.sleep(0.1)
        return process

    def serve(self) -> str:
        process = self.start(self.hotswap, "serve-hub", self.hub, "--port", "0", "--quiet", env=without_hub({}))
        self.url = process.stdout.readline().strip()
        return self.url

    def at(self, endpoint: str, home: str, **more: str) -> dict:
        """An environment with a cache of its own."""
        return without_hub({"HF_ENDPOINT": endpoint, "HF_HOME": str(self.work / home), "HF_TOKEN": "hf_any"} | more)

    def commit(self) -> str:
        with urllib.request.urlopen(f"{self.url}/api/models/acme/tiny") as answer:
            return json.load(answer)["sha"]

    def asks(self, name: str) -> None:
        python = self.environments.make(name)
        print(name, "huggingface_hub:", run(python, "-c", HUB, self.commit(), MANY, env=self.at(self.url, f"hub-{name}")).strip(), flush=True)

    def runs_kernels(self, name: str, form: list[str], asks_for_trust: bool = True) -> None:
        """form: the flags of `kernel lock` for the form that this release reads."""
        python = self.environments.make(name)
        projects = {}
        for whose in ("ours", "theirs"):
            projects[whose] = self.work / f"{whose}-{name}"
            projects[whose].mkdir()
            (projects[whose] / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.kernels.dependencies]\n"acme/norm" = 1\n')
        run(self.hotswap, "kernel", "lock", projects["ours"], *form, env=self.at(self.url, "ours"))
        more = [] if asks_for_trust else ["trusted"]
        said = run(python, "-c", KERNELS, projects["ours"], projects["theirs"], *more, env=self.at(self.url, f"kernels-{name}"))
        print(name, "kernels:", said.strip().split("\n")[-1], flush=True)
        ours, theirs = ((projects[whose] / "kernels.lock").read_text() for whose in ("ours", "theirs"))
        if json.loads(ours) != json.loads(theirs):
            fail(f"expected the lock that {name} writes; got\n{ours}\nwhere it has\n{theirs}")
        run(self.hotswap, "kernel", "download", projects["theirs"], env=self.at(self.url, f"from-{name}"))
        print(name, "kernels: its lock is ours, and is read here", flush=True)

    def hf_on_our_cache(self) -> None:
        """What this program leaves in the cache, by the tool that Python's users look at it with."""
        python = self.environments.make("newest")
        environment = self.at(self.url, "shared")
        hf = python.with_name("hf")
        run(self.hotswap, "download", "acme/tiny", env=environment)
        run(self.hotswap, "kernel", "download", "acme/norm@v1", env=environment)
        for looked in ("kernel has acme/norm@v1.0.0", "kernel versions acme/norm"):
            run(self.hotswap, *looked.split(), env=environment)
        run(self.hotswap, "download", "acme/none", env=environment, wanted=1)
        untrusted = environment | {"HF_ENDPOINT": self.url}
        (self.hub / "trusted_publishers.txt").write_text("")
        run(self.hotswap, "kernel", "download", "acme/norm@main", env=untrusted | {"HF_HOME": str(self.work / "refused")}, wanted=1)
        (self.hub / "trusted_publishers.txt").write_text("acme\n")
        for home in ("shared", "refused"):
            there = environment | {"HF_HOME": str(self.work / home)}
            run(hf, "cache", "ls", env=there)
            scan = "import huggingface_hub as hh; print(*hh.scan_cache_dir().warnings, sep='\\n')"
            if said := run(python, "-c", scan, env=there).strip():
                fail(f"expected a cache that huggingface_hub finds whole; it says\n{said}")
        run(hf, "cache", "verify", "acme/tiny", env=environment)
        run(hf, "download", "acme/tiny", env=environment)
        print("hf: cache ls and cache verify find nothing wrong in our cache", flush=True)

    def loads_models(self) -> None:
        python = self.environments.make("transformers")
        model = self.hub / "models/acme/tiny/main"
        print("transformers:", run(python, "-c", TRANSFORMERS, model, env=self.at(self.url, "transformers")).strip().split("\n")[-1], flush=True)

    def ours_at(self, endpoint: str, home: str, **more: str) -> None:
        environment = self.at(endpoint, home, **more)
        run(self.hotswap, "download", "acme/tiny", env=environment)
        run(self.hotswap, "download", "acme/table", "--type", "dataset", env=environment)
        ids = json.loads(run(self.hotswap, "generate", "--model", "acme/tiny", "--ids", self.work / "ids.json", "--max-new-tokens", "4", "--json", env=environment))
        if len(ids["token_ids"][0] if isinstance(ids["token_ids"][0], list) else ids["token_ids"]) < 4:
            fail(f"expected four tokens; got {ids}")

    def through_olah(self) -> None:
        python, port = self.environments.make("olah"), free_port()
        netloc = self.url.removeprefix("http://")
        hf = ["--hf-scheme", "http", "--hf-netloc", netloc, "--hf-lfs-netloc", netloc]
        mirror = ["--host", "127.0.0.1", "--port", port, "--mirror-netloc", f"127.0.0.1:{port}", "--mirror-lfs-netloc", f"127.0.0.1:{port}"]
        self.start(python.with_name("olah-cli"), *hf, *mirror, "--repos-path", self.work / "olah", "--log-path", self.work / "olah-logs", port=port, env=without_hub({}))
        olah = f"http://127.0.0.1:{port}"
        self.ours_at(olah, "through-olah")
        newest = self.environments.make("newest")
        script = "import huggingface_hub as hh; print(hh.snapshot_download('acme/tiny'))"
        run(newest, "-c", script, env=self.at(olah, "python-through-olah"))
        print("olah: a model and a dataset through it, by our client and by Python's", flush=True)

    def through_tls(self) -> None:
        proxy = TlsProxy(self.work, int(self.url.rpartition(":")[2]))
        trust = {"SSL_CERT_FILE": str(proxy.certificate)}
        run(self.hotswap, "download", "acme/tiny", env=self.at(proxy.url, "distrusting"), wanted=75)
        self.ours_at(proxy.url, "through-tls", **trust)
        environment = self.at(proxy.url, "through-tls", **trust)
        run(self.hotswap, "kernel", "download", "acme/norm@v1", env=environment)
        folder = run(self.hotswap, "download", "acme/many", "--type", "dataset", env=environment).strip()
        if (got := len(list(Path(folder).glob("*.txt")))) != MANY:
            fail(f"expected {MANY} files by a list of two pages; got {got}")
        newest = self.environments.make("newest")
        script = "import huggingface_hub as hh; print(len(list(hh.HfApi().list_repo_tree('acme/many', repo_type='dataset', recursive=True))))"
        if run(newest, "-c", script, env=self.at(proxy.url, "python-through-tls", **trust)).strip() != str(MANY):
            fail("Python did not find every page behind the proxy")
        print("TLS: everything through a proxy that ends it, every page of a list too", flush=True)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="has torch and transformers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hotswap-peers-") as folder:
        peers = Peers(args.build.resolve(), args.python.absolute(), Path(folder))
        if not peers.environments.index_answers():
            print("not tested: other people's clients: no package index answers")
            sys.exit(77)
        try:
            peers.fill(args.build.resolve())
            peers.serve()
            for name in ("newest", "oldest-hub"):
                peers.asks(name)
            peers.runs_kernels("newest", [])
            peers.runs_kernels("oldest-kernels", ["--form", "variants"], asks_for_trust=False)
            peers.hf_on_our_cache()
            peers.loads_models()
            peers.through_olah()
            peers.through_tls()
        finally:
            peers.stop()
        for name, versions in peers.environments.versions.items():
            print(f"{name:16}{versions}")


if __name__ == "__main__":
    main()
