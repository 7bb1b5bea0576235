"""Deformable attention in models of transformers: tiny random ones, stock and swapped."""

import contextlib
import copy

import pytest
import torch
import transformers as T
from tiny import Calls, close, same_gradients, twin
from torch.utils._python_dispatch import TorchDispatchMode

import hotswap

RESNET = dict(num_channels=3, embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
              out_features=["stage2", "stage3", "stage4"])  # fmt: skip
SWIN = dict(image_size=96, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2)
THREE = dict(SWIN, out_features=["stage2", "stage3", "stage4"])
HEADS = dict(encoder_attention_heads=4, decoder_attention_heads=4)
SIZES = dict(encoder_layers=2, decoder_layers=2, encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=32, num_queries=7, **HEADS)
HYBRID = dict(SIZES, encoder_layers=1, encoder_hidden_dim=32, encoder_in_channels=[16, 24, 32], decoder_in_channels=[32] * 3,
              num_denoising=0)  # fmt: skip
TEXT = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=99, max_position_embeddings=32)


def image():
    return dict(pixel_values=torch.randn(2, 3, 96, 96))


def words():
    return torch.tensor([[101 % 99, 5, 6, 7, 102 % 99]]).repeat(2, 1)


# fmt: off
MODELS = {
    "deformable_detr": lambda: T.DeformableDetrModel(T.DeformableDetrConfig(
        backbone_config=T.ResNetConfig(**RESNET), num_feature_levels=4, **dict(SIZES, d_model=64))),
    "rt_detr": lambda: T.RTDetrModel(T.RTDetrConfig(backbone_config=T.RTDetrResNetConfig(**RESNET), **HYBRID)),
    "rt_detr_v2": lambda: T.RTDetrV2Model(T.RTDetrV2Config(backbone_config=T.RTDetrResNetConfig(**RESNET), **HYBRID)),
    "d_fine": lambda: T.DFineModel(T.DFineConfig(
        backbone_config=T.RTDetrResNetConfig(**RESNET), decoder_n_points=[3, 6, 3], **HYBRID)),
    "deimv2": lambda: T.Deimv2Model(T.Deimv2Config(
        backbone_config=T.RTDetrResNetConfig(**RESNET), decoder_n_points=[3, 6, 3], **HYBRID)),
    "grounding_dino": lambda: T.GroundingDinoModel(T.GroundingDinoConfig(
        backbone_config=T.SwinConfig(**THREE), text_config=T.BertConfig(**TEXT), max_text_len=16, num_feature_levels=4, **SIZES)),
    "omdet_turbo": lambda: T.OmDetTurboForObjectDetection(T.OmDetTurboConfig(
        backbone_config=T.SwinConfig(**THREE), text_config=dict(TEXT, model_type="clip_text_model", projection_dim=16, bos_token_id=1, eos_token_id=2),
        image_size=96, text_projection_in_dim=16, text_projection_out_dim=16, task_encoder_hidden_dim=16, class_embed_dim=16,
        num_queries=7, encoder_hidden_dim=32, vision_features_channels=[32] * 3, encoder_in_channels=[16, 32, 64],
        encoder_attention_heads=4, encoder_dim_feedforward=32, decoder_hidden_dim=32, decoder_num_heads=4,
        decoder_num_layers=2, decoder_dim_feedforward=32, apply_layernorm_after_vision_backbone=False)),
    "mask2former": lambda: T.Mask2FormerModel(T.Mask2FormerConfig(
        backbone_config=T.SwinConfig(**dict(SWIN, out_features=["stage1", "stage2", "stage3", "stage4"])), feature_size=32,
        mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=32, encoder_layers=2, decoder_layers=2,
        num_attention_heads=4, dim_feedforward=32, num_queries=7)),
    "oneformer": lambda: T.OneFormerModel(T.OneFormerConfig(
        backbone_config=T.SwinConfig(**dict(SWIN, out_features=["stage1", "stage2", "stage3", "stage4"])), conv_dim=32, mask_dim=32,
        hidden_dim=32, encoder_feedforward_dim=32, encoder_layers=2, decoder_layers=2, num_attention_heads=4, dim_feedforward=32,
        num_queries=7, task_seq_len=9, query_dec_layers=1, text_encoder_width=16, text_encoder_context_length=9,
        text_encoder_num_layers=1, text_encoder_vocab_size=99, text_encoder_proj_layers=1, text_encoder_n_ctx=2)),
}
# fmt: on
LAYERS = {"deformable_detr": 4, "rt_detr": 2, "rt_detr_v2": 2, "d_fine": 2, "deimv2": 2, "grounding_dino": 4, "omdet_turbo": 2, "mask2former": 2,
          "oneformer": 2}  # fmt: skip
ALONE = dict(layer_norm=False, rms_norm=False, activation=False, mlp=False)
POINTS = ("rt_detr_v2", "d_fine", "deimv2")  # by the op with points of each level's own


def data(family):
    torch.manual_seed(1)
    given = image()
    if family == "grounding_dino":
        given |= dict(input_ids=words(), attention_mask=torch.ones(2, 5, dtype=torch.long))
    if family == "oneformer":
        given |= dict(task_inputs=torch.randint(0, 99, (2, 9)))
    if family == "omdet_turbo":
        task = dict(input_ids=words(), attention_mask=torch.ones(2, 5, dtype=torch.long))
        given |= dict(classes_input_ids=words().repeat(2, 1), classes_attention_mask=torch.ones(4, 5, dtype=torch.long),
                      classes_structure=torch.tensor([2, 2]), tasks_input_ids=task["input_ids"],
                      tasks_attention_mask=task["attention_mask"])  # fmt: skip
    return given


def model(family):
    torch.manual_seed(0)
    made = MODELS[family]().eval().to(torch.get_default_device())  # no dropout; norms of batches hold still
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "sampling_offsets" in name or "attention_weights" in name:  # fresh ones are the same for all queries
                p.normal_(std=0.3)
            else:  # fresh ones are 0 here and there, and no gradient comes by
                p += 0.02 * torch.randn_like(p)
    return made


def tensors(out) -> list:
    if isinstance(out, torch.Tensor):
        return [out] if out.is_floating_point() and out.requires_grad else []
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return [t for part in parts for t in tensors(part)]


def step(m, given):
    """What it gives, and the gradients of a sum of it with weights that are the same for the same shapes."""
    out = tensors(m(**given))
    m.zero_grad(set_to_none=True)
    torch.autograd.backward(out, [torch.sin(torch.arange(t.numel()).view(t.shape) + 1.0).to(t.dtype) for t in out])
    return [t.detach() for t in out], {name: p.grad for name, p in m.named_parameters() if p.grad is not None}


def same_outputs(got, want, limit=2e-5):
    assert len(got) == len(want) > 0
    for g, w in zip(got, want):
        hidden = w.isinf()  # scores of what is masked
        assert torch.equal(g.isinf(), hidden)
        close(g[~hidden], w[~hidden], limit)


@pytest.fixture(params=MODELS)
def family(request):
    return request.param


def op_of(family):
    return "deformable.deformable_attention" + "_points" * (family in POINTS)


def test_outputs_and_gradients(family):
    """In float64: the models choose queries by scores, cut masks at a half and look between pixels, so that in float32 a last
    bit, ours or of stock's additions in any order on a GPU, may turn a gradient. Rounding alone is 1e-15 in outputs, and
    5e-10 in the gradients that cancel most."""
    stock, given = model(family).double(), {k: v.double() if v.is_floating_point() else v for k, v in data(family).items()}
    swapped = twin(stock, **ALONE)
    with Calls() as calls:
        got, mine = step(swapped, given)
    count, op = LAYERS[family], op_of(family)
    assert calls.made == {op: count, f"{op}_bwd": count}
    want, theirs = step(stock, given)
    same_outputs(got, want, 1e-10)
    same_gradients(mine, theirs, 1e-8)
    rows = [r for r in hotswap.report(swapped).rows if r.package == "deformable"]
    assert len(rows) == count
    with Calls() as calls:
        hotswap.unkernelize(swapped)(**given)
    assert calls.made == {}


class Seen(TorchDispatchMode):
    """Every call of ours, below autograd: op, arguments, results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "deformable_attention" in func.name():
            self.calls.append((func.name().split("::")[1], args, out))
        return out


def sizes_of(shapes, points, device):
    """(width, height) of each sample's level."""
    return shapes.to(device).flip(1).repeat_interleave(torch.tensor(points, device=device), 0)


def exact(value, shapes, starts, places, weights, points=None, dy=None, moved=0.0):
    """As transformers has it, in float64; with dy its gradients. moved: places so many pixels further."""
    from transformers.models.d_fine.modeling_d_fine import multi_scale_deformable_attention_v2

    leaves = [t.detach().double().requires_grad_() for t in (value, places, weights)]
    flat = leaves[1:] if points else [t.flatten(3, 4) for t in leaves[1:]]
    points = points or [weights.shape[4]] * weights.shape[3]
    further = moved / sizes_of(shapes, points, places.device)
    y = multi_scale_deformable_attention_v2(leaves[0], shapes.tolist(), flat[0] + further, flat[1], points)
    return [y] if dy is None else list(torch.autograd.grad(y, leaves, dy.double()))


def at_a_centre(shapes, places, points=None):
    """Coordinates that float32 cannot tell from a pixel's centre, where the slope jumps: the last bit says which pixels they lie
    between. A model's own grid and offsets of 8 bits meet there. Also half a pixel outside: no slope here, one of one side
    in torch."""
    flat = places if points else places.flatten(3, 4)
    points = points or [places.shape[4]] * places.shape[3]
    pixels = flat.double() * sizes_of(shapes, points, places.device) - 0.5
    return ((pixels - pixels.round()).abs() <= 2**-23 * (pixels.abs() + 1)).view_as(places)


def exact_gradients(got, dy, value, shapes, starts, places, weights, *points):
    """Those of float64. A coordinate at a pixel's centre has the slope of either side: the nearer one."""
    given = value, shapes, starts, places, weights, *points
    dvalue, slopes, dweights = exact(*given, dy=dy)
    centre = at_a_centre(shapes, places, *points)
    assert centre.double().mean() < 0.1
    for side in (exact(*given, dy=dy, moved=pixels)[1] for pixels in (-4e-6, 4e-6)):
        nearer = (got[1].double() - side).abs() < (got[1].double() - slopes).abs()
        slopes = torch.where(centre & nearer, side, slopes)
    return [dvalue, slopes, dweights]


def ops_are_exact(family, calls, dtype):
    """What our ops were given and what they made of it: float64's on the same numbers, rounded once."""
    op, count = op_of(family).removeprefix("deformable."), LAYERS[family]
    assert sorted(name for name, _, _ in calls) == [op] * count + [f"{op}_bwd"] * count
    assert {args[0].dtype for _, args, _ in calls} == {dtype}
    for name, args, out in calls:
        backward = name.endswith("_bwd")
        want = exact_gradients(out, *args) if backward else exact(*args)
        for got, w in zip(out if backward else [out], want, strict=True):
            assert w.norm() > 0
            close(got, w, 2**-8 if got.dtype == torch.bfloat16 else 5e-6)


def test_float32(family):
    """A last bit may turn one of those choices: not with these seeds."""
    stock, given = model(family), data(family)
    swapped = twin(stock, **ALONE)
    with Seen() as seen:
        got, mine = step(swapped, given)
    ops_are_exact(family, seen.calls, torch.float32)
    want, theirs = step(stock, given)
    same_outputs(got, want)
    same_gradients(mine, theirs, 2e-4)


def test_autocast(family):
    """Values in bfloat16. (Stock computes places from numbers that it has rounded again, so that its own are half a pixel off.)"""
    stock, given = model(family), data(family)
    swapped = twin(stock, **ALONE)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16), Seen() as seen:
        out = tensors(swapped(**given))
        torch.autograd.backward(out, [torch.ones_like(t) for t in out])
    assert all(p.grad.isfinite().all() for p in swapped.parameters() if p.grad is not None)
    ops_are_exact(family, seen.calls, torch.bfloat16)


@contextlib.contextmanager
def cut_as(m, masks):
    """Mask2Former cuts masks at a half for the next layer to look through, and one bit of them moves its output by 0.15: where
    there are masks already, they take the place of the model's own; else its own are noted."""
    held = list(masks)

    def hook(module, args, out):
        if held:
            return out[0], held.pop(0)
        masks.append(out[1])

    hooks = [p.register_forward_hook(hook) for p in m.modules() if type(p).__name__ == "Mask2FormerMaskPredictor"]
    yield
    assert not held
    for h in hooks:
        h.remove()


@pytest.mark.parametrize("family", ["deformable_detr", "mask2former"])  # others choose queries by scores, which a rounding may turn
def test_outputs_under_autocast(family):
    stock, given, masks = model(family), data(family), []
    with torch.no_grad():
        with cut_as(stock, masks):
            want = [t for t in stock(**given).to_tuple() if torch.is_tensor(t)]
        assert bool(masks) == (family == "mask2former")
        errors = []
        for m in (twin(stock, **ALONE), twin(stock), stock):
            with cut_as(m, masks), torch.autocast(torch.get_default_device().type, torch.bfloat16):
                got = [t for t in m(**given).to_tuple() if torch.is_tensor(t)]
            errors.append([float((g.double() - w.double()).norm() / w.double().norm()) for g, w in zip(got, want, strict=True)])
    for alone, ours, theirs in zip(*errors, strict=True):
        assert alone <= 1.5 * theirs + 2**-9
        assert ours <= 2 * theirs + 2**-8  # layer norms in bfloat16, which CUDA's autocast has stock's make in float32


def test_layer_norms_and_activations_beside_it():
    stock, given = model("deformable_detr"), data("deformable_detr")
    with Calls() as calls:
        got, mine = step(twin(stock), given)
    want, theirs = step(stock, given)
    assert calls.made["deformable.deformable_attention"] == 4 and calls.made["norm.layer_norm_bwd"] > 0
    same_outputs(got, want)
    same_gradients(mine, theirs, 2e-4)


def test_the_option_and_what_is_not_ours():
    stock = model("rt_detr_v2")
    assert not [r for r in hotswap.report(twin(stock, deformable_attention=False)).rows if r.package == "deformable"]
    for module in stock.modules():
        if hasattr(module, "method"):
            module.method = "discrete"  # the nearest pixel: no op of ours
    swapped = twin(stock)
    rows = [r for r in hotswap.report(swapped).rows if r.layer == "MultiScaleDeformableAttention"]
    assert len(rows) == 2 and all(r.package is None and "something else" in r.why for r in rows)
    with pytest.raises(RuntimeError, match="strict: expected a kernel for every layer; got none for .*encoder_attn"):
        twin(stock, strict=True)


# RT-DETR v2's own check of sizes does not compile in one graph.
@pytest.mark.parametrize(
    "family, path",
    [("deformable_detr", "decoder.layers.0.encoder_attn"), ("mask2former", "pixel_level_module.decoder.encoder.layers.0.self_attn")],
)
def test_compiled_in_one_graph(family, path):
    stock, given = model(family), data(family)
    seen = []
    hook = stock.get_submodule(path).register_forward_hook(lambda m, a, k, o: seen.append((a, k)), with_kwargs=True)
    with torch.no_grad():
        stock(**given)
    hook.remove()
    args, kwargs = seen[0]
    swapped = twin(stock)
    torch.compiler.reset()
    compiled = torch.compile(swapped.get_submodule(path), fullgraph=True, backend="aot_eager")
    with Calls() as calls:
        got = compiled(*args, **kwargs)[0]
        got.sum().backward()
    assert calls.made[op_of(family)] == 1 and calls.made[f"{op_of(family)}_bwd"] == 1
    close(got, stock.get_submodule(path)(*args, **kwargs)[0], 1e-5)
    torch.compiler.reset()


def test_every_class_of_that_name():
    """All models of transformers that carry the name: the same formula, found by asking each class."""
    import importlib
    import pkgutil

    import transformers.models

    from hotswap.matchers.registered import matches

    found = []
    for info in pkgutil.iter_modules(transformers.models.__path__):
        source = f"{transformers.models.__path__[0]}/{info.name}/modeling_{info.name}.py"
        try:
            if "class MultiScaleDeformableAttention" not in open(source).read():
                continue
        except FileNotFoundError:
            continue
        module = importlib.import_module(f"transformers.models.{info.name}.modeling_{info.name}")
        layer = module.MultiScaleDeformableAttention()
        assert [r.layer for r in matches(layer)] == ["MultiScaleDeformableAttention"], info.name
        assert type(layer).kernel_layer_name == "MultiScaleDeformableAttention"
        found.append(info.name)
    assert len(found) >= 9, found


def test_by_the_kernel_config():
    """transformers' own mapping, in every mode: kernels binds the layer's class, and train() keeps it."""
    stock, given = model("deformable_detr"), data("deformable_detr")
    swapped = copy.deepcopy(stock)
    swapped.set_use_kernels(True, hotswap.kernel_config(layer_norm=False, activation=False))
    for training in (False, True, False):
        swapped.train(training)
        with Calls() as calls:
            swapped(**given)
        assert calls.made == {"deformable.deformable_attention": 4}
    swapped.eval()
    with torch.no_grad():
        for g, w in zip(swapped(**given).values(), stock(**given).values()):
            if torch.is_tensor(g):
                close(g, w, 2e-5)
