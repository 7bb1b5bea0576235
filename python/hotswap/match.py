"""Which forward of a package may stand in for a module's own.

A replacement is bound only when it computes what the module's class computes: the class's forward is run on a few
values beside the replacement's, once for each class and its settings. So no list of model families decides, the casting rules of norms
are told apart, and a layer that looks right and is not stays as it is.
"""

import inspect
import functools
import types
from typing import Optional

import torch
from torch import nn

from hotswap import deformable, experts, mixers, residual
from hotswap.agree import Trial, agreement, first, linear, numbers, settings, shell_of, stock_forward
from hotswap.fitting import fitted
from hotswap.packages import load
from hotswap.plain import Looked, quantised_weight
from hotswap.projections import ADD_NORM, linking
from hotswap.replacement import Replacement, class_of, decorated, inside, seeing


OPTIONS = {
    "rms_norm": True,
    "layer_norm": True,
    "rope": True,
    "mlp": True,
    "activation": True,
    "experts": True,
    "cross_entropy": True,
    "fused_linear_cross_entropy": False,
    "attention": False,
    "linear": False,
    "deformable_attention": True,
    "mamba": True,
}


def _of_package(option, layer, package, ops):
    layer_class = getattr(load(package).layers, layer)
    return Replacement(option, layer, package, ops, layer_class.forward, layer_class)


# ---- layers -------------------------------------------------------------------------------------------------------


def _is_vector(module, name):
    value = getattr(module, name, None)
    return isinstance(value, torch.Tensor) and value.dim() == 1


def _norm_in_weights_type():
    """T5's: computed in float32, and given in the weight's type where that has 16 bits."""
    layer = load("norm").layers.RMSNorm.forward

    def forward(self, hidden_states):
        wide = torch.promote_types(hidden_states.dtype, self.weight.dtype)
        y = layer(self, hidden_states.to(wide))
        return y if self.weight.dtype == torch.float32 else y.to(self.weight.dtype)

    return Replacement("rms_norm", "RMSNorm", "norm", ("rms_norm", "rms_norm_fwd", "rms_norm_bwd"), forward)


def is_rms_norm(module) -> bool:
    """By its name, or, of classes that are called a LayerNorm and are none of torch's, by the name of its epsilon (T5)."""
    name = class_of(module).__name__
    if name.endswith(("RMSNorm", "L2Norm")):
        return True
    t5 = name.endswith("LayerNorm") and isinstance(getattr(module, "variance_epsilon", None), float)
    return t5 and not isinstance(module, nn.LayerNorm) and not isinstance(getattr(module, "bias", None), torch.Tensor)


def _rms_norm(module):
    if not is_rms_norm(module):
        return None
    ops = ("rms_norm", "rms_norm_fwd", "rms_norm_bwd")
    names = [n for n in ("variance_epsilon", "eps") if isinstance(getattr(module, n, None), float)]
    weighted = _is_vector(module, "weight")
    if weighted:
        layers = {"variance_epsilon": ["RMSNormCastLast", "RMSNorm"], "eps": ["RMSNormZeroCentered", "RMSNormCastLastEps", "RMSNormEps", "RMSNormUnweighted"]}
    else:
        layers = {"variance_epsilon": [], "eps": ["RMSNormUnweighted"]}

    def candidates():
        made = [_of_package("rms_norm", layer, "norm", ops) for n in names for layer in layers[n]]
        named = class_of(module).__name__.endswith("RMSNorm")
        return made if named or not weighted or "variance_epsilon" not in names else [_norm_in_weights_type(), *made]

    def agree(candidate):
        parts = {"normalized_shape": (16,)} if isinstance(module, nn.RMSNorm) else {}  # torch's own
        shell = shell_of(module, weight=nn.Parameter(numbers(16)), **parts) if weighted else shell_of(module, **parts)
        x = numbers(3, 5, 16) * torch.tensor([[1.0], [1e-3], [30.0], [1.0], [2.0]])  # small ones: epsilon counts
        stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
        # A float32 weight on bfloat16 shows what is cast when.
        return agreement(stock, ours, [((x,), 1e-5), ((x.bfloat16(),), 2**-7)])

    return first((settings(module), weighted), candidates, agree, stock_forward(module))


def _layer_norm(module):
    if not issubclass(class_of(module), nn.LayerNorm) or not _is_vector(module, "weight"):
        return None
    ops = ("layer_norm", "layer_norm_fwd", "layer_norm_bwd")

    def candidates():
        return [_of_package("layer_norm", layer, "norm", ops) for layer in ("LayerNorm", "LayerNormZeroCentered")]

    def agree(candidate):
        bias = None if module.bias is None else nn.Parameter(numbers(16))
        shell = shell_of(module, normalized_shape=(16,), weight=nn.Parameter(numbers(16)), bias=bias)
        stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
        x = numbers(3, 5, 16)
        return agreement(stock, ours, [((x,), 1e-5), ((1e-3 * x,), 1e-4)])  # small ones: epsilon counts

    return first((settings(module), module.bias is None), candidates, agree, stock_forward(module))


ACTIVATIONS = {
    "SiLU": "silu", "GeLU": "gelu", "GeluTanh": "gelu_tanh", "QuickGELU": "gelu_quick", "ReLUSquared": "relu_squared"
}  # fmt: skip


def _activation(module):
    in_torch = class_of(module) in (nn.SiLU, nn.GELU) and not getattr(module, "inplace", False)
    if not in_torch and class_of(module).__module__ != "transformers.activations":
        return None
    if next(module.children(), None) is not None or next(module.parameters(), None) is not None:
        return None

    def candidates():
        return [_of_package("activation", layer, "activation", (op, f"{op}_bwd")) for layer, op in ACTIVATIONS.items()]

    def agree(candidate):
        stock, ours = stock_forward(module).__get__(module), candidate.forward.__get__(module)
        # the wide ones show a limit (gelu_10)
        return agreement(stock, ours, [((5 * numbers(3, 40),), 1e-6), ((1e4 * numbers(3, 40),), 1e-6)])

    return first(settings(module), candidates, agree, stock_forward(module))


def _scaled_swiglu_mlp():
    """Falcon H1's: a factor before the activation and one at the end."""
    swiglu = load("mlp").swiglu

    def forward(self, x):
        gate = self.gate_proj(x) * self.gate_multiplier
        return self.down_proj(swiglu(gate, self.up_proj(x))) * self.down_multiplier

    return Replacement("mlp", "SwiGLUMLP", "mlp", ("swiglu", "swiglu_bwd", "swiglu_bwd_"), forward)


def _clamped_swiglu_mlp():
    """DeepSeek 4's: a limit on gate and up."""
    swiglu = load("mlp").swiglu

    def forward(self, x):
        gate, up = self.gate_proj(x).clamp(max=self.limit), self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(swiglu(gate, up))

    return Replacement("mlp", "SwiGLUMLP", "mlp", ("swiglu", "swiglu_bwd", "swiglu_bwd_"), forward)


_OTHER_NAMES = (("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"))  # of gate, up and down: LFM2's, and T5's, which ends with a dropout


def _names_of_mlp(module) -> Optional[tuple]:
    """The names of gate, up and down, where they are not those of Llama."""
    return next((names for names in _OTHER_NAMES if all(isinstance(getattr(module, n, None), nn.Module) for n in names)), None)


def _named_mlp(layer: str, op: str, gate: str, up: str, down: str, drops: bool) -> Replacement:
    gated = getattr(load("mlp"), op)

    def forward(self, x):
        y, last = gated(getattr(self, gate)(x), getattr(self, up)(x)), getattr(self, down)
        if drops:  # T5's, whose last product may be in float32
            y, weight = self.dropout(y), last.weight
            y = y.to(weight.dtype) if isinstance(weight, torch.Tensor) and weight.dtype != torch.int8 else y
        return last(y)

    return Replacement("mlp", layer, "mlp", (op, *(f"{op}_bwd{end}" for end in ("", "_", "_again_"))), forward)


def _gated_mlp_of_other_names(module):
    """The activation is a child, or a function that the class's forward calls."""
    names = _names_of_mlp(module)
    act = next((n for n in ("act_fn", "activation_fn", "act") if isinstance(getattr(module, n, None), nn.Module)), None)
    drops = isinstance(getattr(module, "dropout", None), nn.Dropout)
    if names is None:
        return None

    def candidates():
        made = [_named_mlp(layer, op, *names, drops) for layer, op in (("SwiGLUMLP", "swiglu"), ("GeGLUMLP", "geglu"))]
        return [c._replace(parts=(act,)) if act else c for c in made]

    def agree(candidate):
        parts = dict(zip(names, (linear(12, 8), linear(12, 8), linear(8, 12))))
        parts |= {act: shell_of(getattr(module, act))} if act else {}
        parts |= {"dropout": nn.Dropout(0.0)} if drops else {}
        shell = shell_of(module, **parts)
        stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
        x = numbers(2, 3, 8)
        return agreement(stock, ours, [((x,), 1e-5), ((1e4 * x,), 1e-5)])

    key = (settings(module), act and settings(getattr(module, act)), names)
    return first(key, candidates, agree, stock_forward(module))


def _gated_mlp(module):
    split = all(isinstance(getattr(module, n, None), nn.Module) for n in ("gate_proj", "up_proj", "down_proj"))
    packed = all(isinstance(getattr(module, n, None), nn.Module) for n in ("gate_up_proj", "down_proj"))
    act = next((n for n in ("act_fn", "activation_fn") if isinstance(getattr(module, n, None), nn.Module)), None)
    if act is None or not (split or packed):
        return None
    layers = {"SwiGLUMLP": "swiglu", "GeGLUMLP": "geglu"}
    if not split:
        layers = {"PackedSwiGLUMLP": "swiglu", "PackedGeGLUMLP": "geglu"}

    def candidates():
        made = [_of_package("mlp", layer, "mlp", (op, *(f"{op}_bwd{end}" for end in ("", "_", "_again_")))) for layer, op in layers.items()]
        if split and hasattr(module, "gate_multiplier"):
            made.append(_scaled_swiglu_mlp())
        if split and isinstance(getattr(module, "limit", None), (int, float)):
            made.append(_clamped_swiglu_mlp())
        return [c._replace(parts=(act,)) for c in made]

    def agree(candidate):
        parts = {"down_proj": linear(8, 12), act: shell_of(getattr(module, act))}
        parts |= {"gate_proj": linear(12, 8), "up_proj": linear(12, 8)} if split else {"gate_up_proj": linear(24, 8)}
        shell = shell_of(module, **parts)
        stock, ours = stock_forward(module).__get__(shell), candidate.forward.__get__(shell)
        # the wide ones show a limit on gate and up (DeepSeek 4)
        return agreement(stock, ours, [((numbers(2, 3, 8),), 1e-5), ((1e4 * numbers(2, 3, 8),), 1e-5)])

    return first((settings(module), settings(getattr(module, act))), candidates, agree, stock_forward(module))


# ---- rotary embedding: a function that an attention's forward looks up among its module's globals -----------------

# angles as cosine and sine; as complex numbers (Llama 4); the same two for the patches of images
ROTARY = ("apply_rotary_pos_emb", "apply_rotary_emb", "apply_rotary_pos_emb_vision", "vision_apply_rotary_emb")


def _rotary_name(forward):
    names = getattr(getattr(inside(forward), "__code__", None), "co_names", ())
    return next((name for name in ROTARY if name in names), None)


def _rotary_functions():
    rotary = load("rotary")
    apply, along = rotary.apply_rotary, rotary.layers.along

    def rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return along(unsqueeze_dim, q, k, cos, lambda q, k: apply(q, k, cos, sin))

    def partial_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return along(unsqueeze_dim, q, k, cos, lambda q, k: apply(q, k, cos, sin, cos.shape[-1]))

    def interleaved_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):  # the table's first half counts (GLM)
        width = cos.shape[-1]
        half = cos[..., : width // 2], sin[..., : width // 2]
        return along(unsqueeze_dim, q, k, cos, lambda q, k: apply(q, k, *half, width, True))

    def complex_rotary_emb(q, k, freqs_cis):  # DeepSeek 2
        return apply(q, k, freqs_cis.real, freqs_cis.imag, None, True)

    def complex_rotary_emb_by_time(q, k, freqs_cis):  # Llama 4: [batch, time, heads, dim]
        return rotary.layers.turned_by_time(q, k, freqs_cis)

    def patch_rotary_pos_emb(q, k, cos, sin, **kwargs):  # DINOv3's: the first tokens are no patches, and stay
        first = q.shape[-2] - sin.shape[-2]
        turned = apply(q[..., first:, :], k[..., first:, :], cos, sin)
        return tuple(torch.cat([x[..., :first, :], t], -2) for x, t in zip((q, k), turned)) if first else turned

    def image_rotary_pos_emb(q, k, cos, sin):  # Qwen's: [time, heads, dim], or a batch of them
        if q.dim() == 4:
            return along(2, q, k, cos, lambda q, k: apply(q, k, cos, sin))
        q, k = image_rotary_pos_emb(q.unsqueeze(0), k.unsqueeze(0), cos, sin)
        return q.squeeze(0), k.squeeze(0)

    def image_complex_rotary_emb(query, key, freqs_ci):  # Llama 4's: [batch, time, heads, dim]
        freqs_ci = freqs_ci.reshape(-1, freqs_ci.shape[-1])
        if not freqs_ci.is_complex():  # a model that was cast to 16 bits has lost the other half
            freqs_ci = torch.complex(freqs_ci.float(), torch.zeros_like(freqs_ci, dtype=torch.float32))
        return rotary.layers.turned_by_time(query, key, freqs_ci.to(query.device))

    tables = [rotary_pos_emb, partial_rotary_pos_emb, interleaved_rotary_pos_emb, patch_rotary_pos_emb]
    numbers = [complex_rotary_emb, complex_rotary_emb_by_time]
    return dict(zip(ROTARY, (tables, numbers, [image_rotary_pos_emb], [image_complex_rotary_emb]), strict=True))


def _of_fixed_tables(stock, ours):
    """Tables that learn, as those of MLCD's class token, have their gradient from the stock function."""

    @functools.wraps(ours)
    def function(q, *args, **kwargs):
        if any(isinstance(t, torch.Tensor) and t.requires_grad for t in (*args[1:], kwargs.get("cos"), kwargs.get("sin"))):
            return stock(q, *args, **kwargs)
        return ours(q, *args, **kwargs)

    return function


def _rotary_cases(name):
    q, k, table = numbers(2, 4, 5, 8), numbers(2, 2, 5, 8) + 0.5, numbers(1, 5, 4)
    by_time = q.transpose(1, 2), k.transpose(1, 2)
    if name == "apply_rotary_emb":
        angles = torch.polar(torch.ones_like(table), table)
        return [((q, k, angles), 1e-6), ((*by_time, angles), 1e-6)]
    if name == "vision_apply_rotary_emb":
        angles = torch.polar(torch.ones_like(table[0]), table[0])
        return [((*by_time, angles[:, None]), 1e-6), ((*by_time, angles.real[:, None]), 1e-6)]
    if name == "apply_rotary_pos_emb_vision":
        angle = torch.cat([table[0], table[0]], -1)
        cos, sin, of_image = angle.cos(), angle.sin(), [x[0] for x in by_time]
        short = [x.bfloat16() for x in of_image]
        return [((*of_image, cos, sin), 1e-6), ((*by_time, cos, sin), 1e-6), ((*short, cos, sin), 2**-8)]
    cases = []
    for half in (table, table[..., :2], None):  # a whole head's table, half of it, and one for both halves
        angle = table if half is None else torch.cat([half, half], -1)
        cos, sin = angle.cos(), angle.sin()
        cases += [((q, k, cos, sin), 1e-6), ((*by_time, cos, sin, 2), 1e-6), ((q, k, cos[0], sin[0], 0), 1e-6)]
        cases += [((q, k, cos[0, 2:], sin[0, 2:]), 1e-6)]  # of patches alone: two of the tokens are none
    return cases


def _attention(module):
    forward = stock_forward(module)
    name = _rotary_name(forward) if isinstance(forward, types.FunctionType) else None
    if name is None:
        return None
    looked = Looked(forward)
    stock = looked.scope.get(name)
    if isinstance(stock, nn.Module):  # what use_kernel_forward_from_hub made of the function; kernelize() may have bound it
        stock = stock_forward(stock).__get__(stock)
    if not callable(stock):
        return None

    def candidates():
        made = [(f.__name__, fit) for f in _rotary_functions()[name] if (fit := fitted(stock, f)) is not None]
        functions = {layer: _of_fixed_tables(stock, fit.forward) for layer, fit in made}
        ours = [(layer, decorated(forward, seeing(inside(forward), {name: functions[layer]})), fit.note) for layer, fit in made]
        ops = ("rotary", "rotary_bwd")
        return [Replacement("rope", layer, "rotary", ops, linking(f), note=note, looked=(looked,)) for layer, f, note in ours]

    def agree(candidate):
        return agreement(stock, inside(candidate.forward).__globals__[name], _rotary_cases(name))

    return first((forward, looked), candidates, agree)


# ---- deformable attention: a module's forward, or a function that one looks up or holds ----------------------------


def _deformable(module):
    if class_of(module).__name__ == deformable.LAYER:
        stock = stock_forward(module).__get__(module)

        def candidates():
            return [_of_package("deformable_attention", deformable.LAYER, "deformable", deformable.OPS)]

        def agree(candidate):
            return agreement(stock, candidate.forward.__get__(module), deformable.module_cases(numbers))

        return first(class_of(module), candidates, agree)
    forward = stock_forward(module)
    name, stock, held = deformable.function_of(module, forward)
    if name is None:
        return None
    looked = None if held else Looked(forward)

    def candidates():
        ours = deformable.functions()[name]
        if held:
            made = dict(forward=ours, attribute=held)
        else:
            made = dict(forward=decorated(forward, seeing(inside(forward), {name: ours})), looked=(looked,))
        return [Replacement("deformable_attention", name, "deformable", deformable.FUNCTIONS[name], **made)]

    def agree(candidate):
        return agreement(stock, deformable.functions()[name], deformable.function_cases(name, numbers))

    return first((forward, stock, name, looked), candidates, agree)


# ---- projections, on demand ----------------------------------------------------------------------------------------


def _linear(module):
    if class_of(module) is not nn.Linear or quantised_weight(module):
        return None
    layer = load("linear").layers.Linear
    return Replacement("linear", "Linear", "linear", ("linear",), layer.forward, layer)


# ---- the model's loss ---------------------------------------------------------------------------------------------


def _loss(module):
    if not isinstance(getattr(class_of(module), "loss_function", None), property):
        return None
    from transformers.loss import loss_utils

    if loss_utils.LOSS_MAPPING.get(getattr(module, "loss_type", None)) is not loss_utils.ForCausalLMLoss:
        return None
    from hotswap import loss

    return loss.replacements(module)


def matches(module: nn.Module) -> list[Replacement]:
    """What may be bound to this module; a model's head has two that exclude each other."""
    finders = (_rms_norm, _layer_norm, _gated_mlp, _gated_mlp_of_other_names, experts.match, _attention, _deformable, mixers.match, residual.match)
    for find in (*finders, _activation, _linear):
        if (found := find(module)) is not None:
            return [found]
    return _loss(module) or []


def looks_like(module: nn.Module) -> Optional[str]:
    """The layer that a module seems to be by its looks alone."""
    if is_rms_norm(module):
        return "RMSNorm"
    if class_of(module).__name__.endswith("LayerNorm") and _is_vector(module, "weight"):
        return "LayerNorm"
    if _rotary_name(stock_forward(module)):
        return "rotary_pos_emb"
    if all(isinstance(getattr(module, n, None), nn.Module) for n in ("gate_proj", "up_proj", "down_proj")) or _names_of_mlp(module):
        return "MLP"
    if quantised_weight(module):
        return "Linear"
    if deformable.looks_like(module, stock_forward(module)):
        return deformable.LAYER
    return experts.looks_like(module) or mixers.looks_like(module)


# ---- names of layers, and what packages of others bring ---------------------------------------------------------------

_NAMES = {"layer_norm": "LayerNorm", "deformable_attention": deformable.LAYER}
_GATED_NORM = "MambaRMSNormGated"  # the layer of the package that serves RMSNormGated


def names_of(replacement: Replacement) -> tuple:
    """The layer's names in a kernel mapping, whatever form of it a class needs; the first is the report's."""
    option, layer = replacement.option, replacement.layer
    if option == "rms_norm":
        return (ADD_NORM if layer == ADD_NORM else "RMSNorm",)
    if option == "rope":
        return (layer, "rotary_pos_emb") if layer.startswith("image_") else ("rotary_pos_emb",)
    if layer == mixers.NORM:
        return (_GATED_NORM, layer)
    if layer == mixers.LAYER:
        return (layer, *dict.fromkeys(function for function, _ in mixers.FUNCTIONS.values()))
    return (_NAMES.get(option, layer.removeprefix("Packed")),)


def of_others(module: nn.Module, slot: str, option: str, name: str, layer_class: type) -> Replacement:
    """The layer of a package that is not ours, for this module: in the place of its forward, or of the function that the layer
    is there. name: the package's, for the report."""
    forward, place = layer_class.forward, {}
    if slot == "rotary_pos_emb":
        stock = stock_forward(module)
        forward = linking(decorated(stock, seeing(inside(stock), {_rotary_name(stock): layer_class()})))
        place = dict(looked=(Looked(stock),))
    elif slot == "ForCausalLMLoss":
        forward, own = layer_class(), matches(module)[0]
        place = dict(attribute=own.attribute, why_not=own.why_not)
    return Replacement(option, slot, name, (), forward, layer_class, **place)


def head_of(model: nn.Module) -> Optional[nn.Module]:
    from hotswap import loss

    return loss.head_of(model)


def heads(module: nn.Module) -> list[Replacement]:
    """What the head of a model may be bound to, with its model."""
    if not isinstance(module, nn.Linear):
        return []
    from hotswap import loss

    return [loss.HEAD]


def why_not(module: nn.Module, candidate: Replacement) -> str:
    """Why a layer of a package that is not ours cannot stand in for the module's own; empty: it can. Both are run on a few
    numbers on the CPU, where the class is one that we have a question for and the kernel runs there."""
    layer, wanted = candidate.layer_class, class_of(module)
    if not issubclass(layer, nn.Module) or layer.__init__ is not nn.Module.__init__:
        return f"{layer.__name__} is no layer without a state of its own"
    if candidate.forward is layer.forward:
        kinds = [[p.kind for p in inspect.signature(c.forward).parameters.values()] for c in (layer, wanted)]
        if kinds[0] != kinds[1]:
            return f"the forward of {layer.__name__} takes other arguments than that of {wanted.__name__}"
    raised = []

    def watched(*args, **kwargs):
        try:
            return candidate.forward(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise RuntimeError from error

    forward = candidate.forward if candidate.forward is not layer.forward else watched
    with Trial(candidate._replace(forward=forward)) as trial:
        try:
            matches(module)
        except Exception as error:  # whatever a foreign layer raises on our numbers
            raised.append(error)
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    if raised and on_cpu:
        return f"{layer.__name__} cannot stand in for {wanted.__name__}: {type(raised[0]).__name__}: {raised[0]}"
    return "" if trial.agrees is not False or raised else f"{layer.__name__} computes something else than {wanted.__name__}"
