"""Gated MLPs whose projections have other names than Llama's: LFM2's w1, w3, w2, and T5's wi_0, wi_1, wo."""

import copy

import pytest
import torch
from tiny import close
from torch import nn
from transformers import Lfm2Config, T5Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2MLP
from transformers.models.t5.modeling_t5 import T5DenseGatedActDense

import hotswap


def lfm2():
    return Lfm2MLP(Lfm2Config(hidden_size=16, intermediate_size=24))


def t5(dropout=0.0, act="gated-gelu"):
    return T5DenseGatedActDense(T5Config(d_model=16, d_ff=24, dropout_rate=dropout, feed_forward_proj=act))


def with_gradient(m, x):
    torch.manual_seed(0)  # of a dropout
    x = x.clone().requires_grad_()
    y = m(x)
    y.float().square().sum().backward()
    return [y, x.grad, *(p.grad for p in m.parameters())]


@pytest.mark.parametrize("made, layer", [
    (lfm2, "SwiGLUMLP"), (t5, "GeGLUMLP"), (lambda: t5(0.3), "GeGLUMLP"), (lambda: t5(act="gated-silu"), "SwiGLUMLP"),
])  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_they_run_the_kernel(made, layer, training):
    torch.manual_seed(0)
    model = nn.Sequential(made(), made()).train(training)
    stock, x = copy.deepcopy(model), torch.randn(3, 5, 16)
    bound = [row for row in hotswap.report(hotswap.kernelize(model)).rows if row.layer == layer]
    assert [row.package for row in bound] == ["mlp", "mlp"], bound
    for ours, theirs in zip(with_gradient(model, x), with_gradient(stock, x)):
        close(ours, theirs, 1e-5)
    hotswap.unkernelize(model)
    assert torch.equal(model.eval()(x), stock.eval()(x))


def test_a_last_product_in_float32_stays_so():
    stock = t5().bfloat16()
    stock.wo.float()  # as T5 in 16 bits is loaded
    model, x = hotswap.kernelize(copy.deepcopy(stock)), torch.randn(3, 5, 16).bfloat16()
    assert model(x).dtype == stock(x).dtype == torch.float32
    close(model(x), stock(x), 2**-7)


class Lookalike(Lfm2MLP):
    def forward(self, x):
        return self.w2(torch.tanh(self.w1(x)) * self.w3(x))


def test_what_only_looks_like_one_has_a_row():
    rows = hotswap.report(hotswap.kernelize(Lookalike(Lfm2Config(hidden_size=16, intermediate_size=24)))).rows
    assert [(row.package, row.why) for row in rows if row.layer == "MLP"] == [(None, "Lookalike computes something else")]
