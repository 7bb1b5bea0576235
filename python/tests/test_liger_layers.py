"""Modules and functions with Liger's names, in float64's light: norms, gated MLPs, rotary embedding."""

import pytest
import torch
from tiny import LIMIT, Calls, against, close
from torch.nn import functional as F
from transformers import FalconH1Config, LlamaConfig

import hotswap

DTYPES = list(LIMIT)


def rms_norm(x, w, eps, offset):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * (w + offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("casting, offset", [("llama", 0.0), ("gemma", 1.0), ("none", 0.0), ("gemma", 0.0)])
def test_rms_norm(dtype, casting, offset):
    layer = hotswap.LigerRMSNorm(24, eps=1e-5, offset=offset, casting_mode=casting, in_place=False).to(dtype)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 1.5)
    functional = lambda x, w: hotswap.liger_rms_norm(x, w, 1e-5, offset, casting)
    x = torch.randn(3, 5, 24, dtype=dtype)
    assert torch.equal(layer(x), functional(x, layer.weight))
    against(functional, lambda x, w: rms_norm(x, w, 1e-5, offset), [x, layer.weight.detach().clone()])
    with Calls() as calls:
        layer(x).sum().backward()
        with torch.no_grad():
            layer(x)
    assert calls.made == {"norm.rms_norm_fwd": 1, "norm.rms_norm_bwd": 1, "norm.rms_norm": 1}


def test_rms_norm_options():
    assert hotswap.LigerRMSNormForGemma2(4).weight.tolist() == [0.0] * 4
    assert hotswap.LigerRMSNormForGemma3(dim := 4).offset == 1.0 and dim == 4
    for bad in (dict(casting_mode="qwen"), dict(init_fn="twos")):
        with pytest.raises(ValueError, match="expected .*; got "):
            hotswap.LigerRMSNorm(4, **bad)(torch.ones(1, 4))
    with pytest.raises(ValueError, match="expected dim"):
        hotswap.LigerRMSNormForMuseGlimmer()
    for name in ("LigerRMSNormForOlmo2", "LigerRMSNormForGlm4"):
        assert getattr(hotswap, name)(4).casting_mode == "llama"


@pytest.mark.parametrize("name, number", [("llama", 0), ("gemma", 1), ("none", -1)])
def test_casting_modes_have_ligers_constants(name, number):
    x, r, w = torch.randn(3, 5, 24, dtype=torch.bfloat16), torch.randn(3, 5, 24, dtype=torch.bfloat16), torch.randn(24, dtype=torch.bfloat16)
    by = lambda mode: (hotswap.liger_rms_norm(x, w, 1e-5, 0.0, mode), *hotswap.liger_fused_add_rms_norm(x, r, w, 1e-5, 0.0, mode))
    assert all(map(torch.equal, by(name), by(number)))
    for wrong in (2, True, "Llama", None):
        with pytest.raises(ValueError, match="expected casting_mode"):
            by(wrong)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("casting", ["llama", "gemma", "none"])
def test_rms_norm_without_a_weight(dtype, casting):
    x = torch.randn(3, 5, 24, dtype=dtype)
    functional = lambda x: hotswap.liger_rms_norm(x, None, 1e-5, 1.0, casting)
    against(functional, lambda x: rms_norm(x, 1, 1e-5, 0.0), [x])
    layer = hotswap.LigerRMSNorm(24, eps=1e-5, casting_mode=casting, elementwise_affine=False)
    assert layer.weight is None and not list(layer.parameters()) and torch.equal(layer(x), functional(x))
    assert torch.equal(hotswap.LigerRMSNormForGemma4(24, eps=1e-5, with_scale=False)(x), hotswap.liger_rms_norm(x, None, 1e-5, 0.0, "gemma"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_and_layer_norm(dtype):
    x, r, w = torch.randn(6, 24, dtype=dtype), torch.randn(6, 24, dtype=dtype), torch.rand(24, dtype=dtype) + 0.5
    both = hotswap.liger_fused_add_rms_norm
    against(lambda x, r, w: both(x, r, w, 1e-6)[0], lambda x, r, w: rms_norm(x + r, w, 1e-6, 0), [x, r, w])
    assert torch.equal(both(x, r, w, 1e-6)[1], x + r)
    fused = hotswap.LigerFusedAddRMSNorm(24, eps=1e-6).to(dtype)
    assert all(torch.equal(a, b) for a, b in zip(fused(x, r), both(x, r, fused.weight, 1e-6), strict=True))
    b = torch.randn(24, dtype=dtype)
    against(
        lambda x, w, b: hotswap.liger_layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (24,), w, b, 1e-5),
        [torch.randn(4, 24, dtype=dtype), w, b],
    )
    layer = hotswap.LigerLayerNorm(24, eps=1e-5, bias=True)
    x = torch.randn(2, 24)
    close(layer(x), F.layer_norm(x, (24,), layer.weight, layer.bias, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated(dtype):
    a, b = torch.randn(3, 7, 40, dtype=dtype), torch.randn(3, 7, 40, dtype=dtype)
    against(hotswap.liger_swiglu, lambda a, b: F.silu(a) * b, [a, b])
    against(hotswap.liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, [a.detach(), b.detach()])
    assert torch.equal(hotswap.liger_swiglu(a=a, b=b), hotswap.liger_swiglu(a, b))
    assert torch.equal(hotswap.liger_geglu(b=b, a=a), hotswap.liger_geglu(a, b))
    scaled = lambda a, b: hotswap.liger_swiglu(a, b, 0.7, 1.3)
    against(scaled, lambda a, b: F.silu(0.7 * a) * b * 1.3, [a.detach(), b.detach()])
    against(hotswap.liger_relu_squared, lambda x: F.relu(x).square(), [a.detach()])
    assert torch.equal(hotswap.LigerReLUSquared()(a), hotswap.liger_relu_squared(a))


MLPS = dict.fromkeys(("LigerSwiGLUMLP", "LigerMLP", "LigerQwen3MoeSwiGLUMLP", "LigerPhi3SwiGLUMLP", "LigerHunyuanV1SwiGLUMLP"), "silu")
MLPS |= dict.fromkeys(("LigerGEGLUMLP", "LigerGEGLUMLPForGemma4"), "gelu_pytorch_tanh")


@pytest.mark.parametrize("name, act", MLPS.items())
def test_mlp_modules(name, act):
    config = LlamaConfig(hidden_size=16, intermediate_size=24, hidden_act=act, num_attention_heads=2)
    layer, x = getattr(hotswap, name)(config), torch.randn(2, 3, 16)
    if name == "LigerPhi3SwiGLUMLP":
        gate, up = layer.gate_up_proj(x).chunk(2, -1)
    else:
        gate, up = layer.gate_proj(x), layer.up_proj(x)
    want = layer.down_proj((F.silu(gate) if act == "silu" else F.gelu(gate, approximate="tanh")) * up)
    with Calls() as calls:
        got = layer(x)
        got.sum().backward()
    close(got, want, 1e-5)
    op = "swiglu" if act == "silu" else "geglu"
    packed = "Phi3" in name  # whose halves are somebody's: not written over
    assert calls.made == {f"mlp.{op}": 1, f"mlp.{op}_bwd" if packed else f"mlp.{op}_bwd_": 1}
    config.hidden_act = "relu"
    with pytest.raises(ValueError, match="expected hidden_act"):
        getattr(hotswap, name)(config)


@pytest.mark.parametrize("bias", [False, True])
def test_mlp_of_falcon_h1(bias):
    config = FalconH1Config(hidden_size=16, intermediate_size=24, mlp_multipliers=[0.7, 1.3], mlp_bias=bias)
    layer, x = hotswap.LigerFalconH1MLP(config), torch.randn(2, 3, 16)
    close(layer(x), layer.down_proj(F.silu(0.7 * layer.gate_proj(x)) * layer.up_proj(x)) * 1.3, 1e-5)


def test_mlp_of_mixtral():
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2)
    layer, x = hotswap.LigerBlockSparseTop2MLP(config), torch.randn(2, 3, 16)
    with Calls() as calls:
        got = layer(x)
        got.sum().backward()
    close(got, layer.w2(F.silu(layer.w1(x)) * layer.w3(x)), 1e-5)
    assert calls.made == {"mlp.swiglu": 1, "mlp.swiglu_bwd_": 1}


def test_mlp_twice_as_wide():
    config = LlamaConfig(hidden_size=16, intermediate_size=24, hidden_act="gelu_tanh", num_hidden_layers=4, num_attention_heads=2)
    config.use_double_wide_mlp, config.num_kv_shared_layers = True, 1
    widths = [hotswap.LigerGEGLUMLPForGemma4(config, i).gate_proj.out_features for i in (2, 3)]
    assert widths == [24, 48] and hotswap.LigerGEGLUMLPForGemma4(config).gate_proj.out_features == 24


@pytest.mark.parametrize("name, act", [("SwiGLU", "silu"), ("GEGLU", "gelu_tanh")])
@pytest.mark.parametrize("shards", [None, 1, 3, 40])
def test_tiled_mlp(name, act, shards):
    """Tile by tile the same numbers; what a tile's gradient needs is made again, not kept."""
    config = LlamaConfig(hidden_size=16, intermediate_size=24, hidden_act=act, num_attention_heads=2)
    tiled = getattr(hotswap, f"LigerTiled{name}MLP")(config, num_shards=shards)
    whole = getattr(hotswap, f"Liger{name}MLP")(config)
    whole.load_state_dict(tiled.state_dict())
    x = torch.randn(2, 35, 16, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape[-1]) or t, lambda t: t):
        got = tiled(x)
    assert 24 not in kept
    want = whole(x)
    close(got, want)
    weight = torch.randn_like(got)
    for g, w in zip(torch.autograd.grad(got, [x, *tiled.parameters()], weight), torch.autograd.grad(want, [x, *whole.parameters()], weight), strict=True):
        close(g, w, 1e-5)
    with torch.no_grad():
        close(tiled(x), want)


def test_mlp_of_another_width():
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2)
    assert hotswap.LigerSwiGLUMLP(config, intermediate_size=8).gate_proj.out_features == 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_rope(dtype, unsqueeze_dim, rotary_dim):
    width = rotary_dim or 8
    angle = torch.rand(1, 5, width // 2, dtype=torch.float64) * 6
    angle = torch.cat([angle, angle], -1)
    q, k = torch.randn(2, 4, 5, 8, dtype=dtype), torch.randn(2, 2, 5, 8, dtype=dtype)
    if unsqueeze_dim == 2:
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()

    def wide(x):
        cos, sin = angle.cos().unsqueeze(unsqueeze_dim), angle.sin().unsqueeze(unsqueeze_dim)
        turned, rest = x[..., :width], x[..., width:]
        half = torch.cat([-turned[..., width // 2 :], turned[..., : width // 2]], -1)
        return torch.cat([turned * cos + half * sin, rest], -1)

    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    call = lambda q, k: hotswap.liger_rotary_pos_emb(q, k, cos, sin, None, unsqueeze_dim, rotary_dim)
    against(lambda q: call(q, k)[0], wide, [q])
    against(lambda k: call(q, k)[1], wide, [k])
    with pytest.raises(ValueError, match="unsqueeze_dim"):
        hotswap.liger_rope(q, k, cos, sin, unsqueeze_dim=3)
    with pytest.raises(ValueError, match="even rotary_dim of at most 8.*got 7"):
        hotswap.liger_rope(q, k, cos[..., :7], sin[..., :7], rotary_dim=7)
    with pytest.raises(ValueError, match="even rotary_dim.*got 3"):
        hotswap.liger_rope(q[..., :3], k[..., :3], cos[..., :3], sin[..., :3], unsqueeze_dim=unsqueeze_dim)


def tables(*shape):
    angle = torch.rand(*shape) * 6
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_of_images(dtype):
    from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

    cos, sin = (torch.cat([t, t], -1) for t in tables(7, 4))
    q, k = torch.randn(7, 3, 8, dtype=dtype), torch.randn(7, 3, 8, dtype=dtype)
    wide = apply_rotary_pos_emb_vision(q.double(), k.double(), cos, sin)
    for got, want in zip(hotswap.liger_rotary_pos_emb_vision(q, k, cos, sin), wide, strict=True):
        assert got.shape == q.shape and got.dtype == dtype
        close(got, want, LIMIT[dtype])


@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_rope_of_time_height_and_width(unsqueeze_dim):
    """mrope_section: the first pairs turn with time, the next with height, the last with width."""
    cos, sin = tables(3, 2, 5, 8)
    cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    which = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2] * 2)
    picked = [t[which, :, :, torch.arange(16)].permute(1, 2, 0) for t in (cos, sin)]
    shape = (2, 3, 5, 16) if unsqueeze_dim == 1 else (2, 5, 3, 16)
    q, k = torch.randn(shape), torch.randn(shape)
    want = hotswap.liger_rope(q, k, *picked, unsqueeze_dim=unsqueeze_dim)
    for name in ("liger_multimodal_rotary_pos_emb", "liger_qwen2vl_mrope"):
        for a, b in zip(getattr(hotswap, name)(q, k, cos, sin, [2, 3, 3], unsqueeze_dim), want, strict=True):
            assert torch.equal(a, b)
    with pytest.raises(ValueError, match="expected mrope_section of 8 pairs"):
        hotswap.liger_qwen2vl_mrope(q, k, cos, sin, [2, 3, 4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_of_llama4(dtype):
    cos, sin = tables(5, 4)
    angles = torch.complex(cos, sin)

    def wide(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2)) * angles[None, :, None].to(torch.complex128)
        return torch.view_as_real(pairs).flatten(-2)

    q, k = torch.randn(2, 5, 3, 8, dtype=dtype), torch.randn(2, 5, 1, 8, dtype=dtype)
    text, vision = hotswap.liger_llama4_text_rotary_pos_emb, hotswap.liger_llama4_vision_rotary_pos_emb
    against(lambda q: text(q, k, angles)[0], wide, [q])
    against(lambda k: text(q, k, angles[None])[1], wide, [k])
    for shape in (angles, angles[:, None], angles[None, :, None]):
        assert all(torch.equal(a, b) for a, b in zip(vision(q, k, shape), text(q, k, angles), strict=True))
    with pytest.raises(ValueError, match="complex"):
        text(q, k, cos)


def test_rope_of_gpt_oss():
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    cos, sin = tables(1, 5, 4)
    want = hotswap.liger_rope(q, k, torch.cat([cos, cos], -1), torch.cat([sin, sin], -1))
    assert all(torch.equal(a, b) for a, b in zip(hotswap.liger_rotary_pos_emb_gpt_oss(q, k, cos, sin), want))
