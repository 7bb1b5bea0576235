"""kernelize() and hotswap.generate leave every random generator as it is, also one that another thread draws from meanwhile."""

import threading

import pytest
import tiny
import torch
from torch import nn

import hotswap
from hotswap.core import agree
from hotswap.generation import decode


@pytest.fixture()
def unasked(monkeypatch):
    """As if no class had been compared yet."""
    monkeypatch.setattr(agree, "_known", {})
    monkeypatch.setattr(decode, "_known", {})


def test_binding_takes_nothing_back_of_what_other_threads_draw(unasked):
    models = [tiny.model(family, num_hidden_layers=2) for family in tiny.FAMILIES]
    drawn, done = [], threading.Event()

    def draw():
        while not done.is_set():
            drawn.append(torch.rand(1, device="cpu"))

    torch.manual_seed(7)
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for m in models:
            hotswap.report(hotswap.kernelize(m, attention=True, fused_linear_cross_entropy=True, linear=True))
    finally:
        done.set()
        thread.join()
    torch.manual_seed(7)
    assert len(drawn) > 100 and all(torch.equal(x, torch.rand(1, device="cpu")) for x in drawn)


def test_generation_draws_what_it_samples_alone(unasked):
    m = hotswap.kernelize(tiny.model("llama").eval())
    prompt, options = torch.tensor([[5, 9, 33]]), dict(max_new_tokens=3, do_sample=True, pad_token_id=0, eos_token_id=None)
    states = []
    for _ in range(2):  # the first call compares the class of the layers
        torch.manual_seed(3)
        hotswap.generate(m, prompt, **options)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


class Dropping(nn.SiLU):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.1, self.training)


def test_a_dropout_is_an_error_where_classes_are_compared():
    state = torch.get_rng_state()
    x = torch.ones(3, device="cpu")
    with torch.no_grad(), agree.NoDraws():
        for draws in (lambda: nn.functional.dropout(x), lambda: torch.rand(2, device="cpu"), lambda: nn.Linear(2, 2, device="cpu")):
            with pytest.raises(RuntimeError, match="expected an op without random values"):
                draws()
        q = torch.ones(1, 1, 2, 8, device="cpu")
        nn.functional.scaled_dot_product_attention(q, q, q), nn.functional.dropout(x, 0.0), nn.functional.dropout(x, 0.5, False)
        assert agree.linear(3, 2).weight.shape == (3, 2)
    assert torch.equal(torch.get_rng_state(), state)
    m = tiny.model("llama")
    m.model.layers[0].mlp.act_fn = Dropping()
    rows = {row.name: row for row in hotswap.report(hotswap.kernelize(m)).rows if row.name.endswith(".mlp")}
    assert rows["model.layers.0.mlp"].package is None and rows["model.layers.1.mlp"].package == "mlp"
