"""Our attention under names that transformers loads, and how often its ops ran."""

import pytest

from hotswap.core.packages import package, packages_folder
from hotswap.matchers import attention

REPOS = ("kernels-community/flash-attn2", "kernels-community/vllm-flash-attn3", "acme/flash-attn2")


class Calls:
    def __enter__(self):
        self.before = {op: package("attention").calls(op) for op in (*attention.OPS, "attention_decode")}
        return self

    def __exit__(self, *_):
        now = {op: package("attention").calls(op) for op in self.before}
        self.made = {op.removeprefix("attention_"): n - self.before[op] for op, n in now.items() if n != self.before[op]}


@pytest.fixture
def local_kernels(monkeypatch):
    place = package("attention").variant
    monkeypatch.setenv("LOCAL_KERNELS", ":".join(f"{r}={packages_folder()}/attention/build/{place}" for r in REPOS))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
