"""liger_kernel.ops: autograd functions under Liger's names, called by their apply; here our ops, each with its own gradient.

What only chooses how Liger computes (in_place, impl, mode, BLOCK_SIZE) is taken and changes nothing.
"""

from torch import nn

from hotswap.core.packages import load
from hotswap.liger import channel_norm, distillation, grpo, lacks, loss, mlp, norm
from hotswap.liger import probability, rotary
from hotswap.liger.function import as_class
from hotswap.liger.functional import parts_of

_moe = load("moe")


def _rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
    return norm.liger_rms_norm(X, W, eps, offset, casting_mode)


def _fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
    return norm.liger_fused_add_rms_norm(X, R, W, eps, offset, casting_mode)


def _layer_norm(X, W, B, eps):
    return norm.liger_layer_norm(X, W, B, eps)


def _group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
    return channel_norm.liger_group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps)


def _dyt(x, alpha, gamma, beta):
    return channel_norm.liger_dyt(x, alpha, gamma, beta)


def _gelu_mul(a, b):
    return mlp.liger_geglu(a, b)


def _silu_mul(a, b, gate_multiplier=1.0, down_multiplier=1.0):
    return mlp.liger_swiglu(a, b, gate_multiplier, down_multiplier)


def _fused_gate_up_silu_mul(y, in_place=False):
    """y: gate and up side by side in the last dimension."""
    return mlp.liger_swiglu(*y.chunk(2, -1))


def _relu_squared(X):
    return mlp.liger_relu_squared(X)


def _mlp(input, gate_weight, up_weight, down_weight, gate_multiplier=1.0, down_multiplier=1.0):
    gate, up = (nn.functional.linear(input, weight) for weight in (gate_weight, up_weight))
    out = nn.functional.linear(mlp.liger_swiglu(gate, up, gate_multiplier), down_weight)
    return out if down_multiplier == 1 else out * down_multiplier


def _fused_moe(x, gate_up_proj, down_proj, top_k_index, top_k_weights):
    """x [tokens, dim], gate_up_proj [experts, 2 * width, dim], down_proj [experts, dim, width], SwiGLU."""
    return _moe.experts(x, top_k_index, top_k_weights, gate_up_proj, None, down_proj, None, "swiglu")


def _tiled_mlp(fn, mlp_module, x, shards, compute_params=None):
    return mlp.in_tiles(lambda tile: fn(mlp_module, tile), x, shards)


def apply_tiled_mlp(fn, mlp_module, x, num_shards=None, compute_params=None):
    """fn(mlp_module, tile) over tiles of x [..., time, dim]; None: as many as keep a tile about square."""
    return _tiled_mlp(fn, mlp_module, x, num_shards or -(-x.shape[-2] // x.shape[-1]))


def _rope(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    return rotary.liger_rope(q, k, cos, sin, position_ids, unsqueeze_dim, rotary_dim)


def _qwen2vl_mrope(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    return rotary.liger_qwen2vl_mrope(q, k, cos, sin, mrope_section, unsqueeze_dim)


def _llama4_rope(q, k, freqs_cis, BLOCK_SIZE=None):
    return rotary.liger_llama4_text_rotary_pos_emb(q, k, freqs_cis)


def _softmax(input_):
    return probability.liger_softmax(input_)


def _sparsemax(x, dim):
    return probability.liger_sparsemax(x, dim)


def _kl_div(y_pred, y_true, reduction="batchmean", log_target=False, eps=1e-10):
    return probability.liger_kl_div(y_pred, y_true, reduction=reduction, log_target=log_target, eps=eps)


def _jsd(_input, target, shift_labels=None, beta=0.5, ignore_index=-100, jsd_impl=None, jsd_mode=None):
    return probability.liger_jsd(_input, target, shift_labels, beta, ignore_index)


def _tvd(p, q, shift_labels=None, reduction="batchmean", ignore_index=-100):
    return probability.liger_tvd(p, q, shift_labels, reduction, ignore_index)


def _fused_linear_jsd(
    student_input,
    student_weight,
    teacher_input,
    teacher_weight,
    shift_labels=None,
    jsd_beta=0.5,
    ignore_index=-100,
    temperature=1.0,
    accum_dtype=None,
    jsd_impl=None,
    jsd_mode=None,
):
    heads = student_input, student_weight, teacher_input, teacher_weight
    return distillation.liger_fused_linear_jsd(*heads, shift_labels, jsd_beta, ignore_index, temperature, accum_dtype)


def _cross_entropy(
    _input,
    target,
    weight,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
):
    """(loss, z_loss, token_accuracy, predicted_tokens), None for what was not asked for."""
    returned = return_z_loss, return_token_accuracy, return_predicted_tokens
    how = reduction, label_smoothing, lse_square_scale, softcap
    return parts_of(loss.liger_cross_entropy(_input, target, weight, None, ignore_index, None, *how, *returned))


def _fused_linear_cross_entropy(
    _input,
    weight,
    target,
    bias=None,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    ce_impl=None,
    ce_mode=None,
    chunk_mem_const=1,
):
    """(loss, z_loss, token_accuracy, predicted_tokens), None for what was not asked for."""
    head, how = (_input, weight, target, bias), (ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap)
    returned = return_z_loss, accum_dtype, use_token_scaling, return_token_accuracy, return_predicted_tokens
    return parts_of(loss.liger_fused_linear_cross_entropy(*head, *how, *returned))


def _grpo(
    logits,
    old_logp,
    ref_logp,
    completion_ids,
    advantages,
    completion_mask,
    temperature,
    beta,
    eps_low,
    eps_high,
    inplace,
    loss_type="grpo",
    max_completion_length=None,
    reduce=True,
    importance_sampling_level="token",
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    vllm_is_ratio=None,
    delta=None,
    use_bias_correction_kl=False,
    num_items_in_batch=None,
    phi_seq=None,
):
    """(loss, mean KL or None, share of clipped) with reduce, else each token's."""
    if phi_seq is not None:
        raise NotImplementedError("GrpoLossFunction: expected phi_seq=None; got a tensor; call triton_grpo_loss, which makes it")
    of_batch = logits, old_logp, ref_logp, completion_ids, advantages, completion_mask
    result = grpo.triton_grpo_loss(
        *of_batch,
        temperature,
        beta,
        eps_low,
        eps_high,
        inplace,
        loss_type,
        max_completion_length,
        importance_sampling_level,
        reduce,
        sapo_temperature_pos,
        sapo_temperature_neg,
        vllm_is_ratio,
        delta,
        use_bias_correction_kl,
        num_items_in_batch,
    )
    if not reduce:
        return result
    loss, metrics = result
    return loss, metrics[0] if beta != 0 else None, metrics[-1]


_CALLS = {
    "CrossEntropy": _cross_entropy,
    "DyT": _dyt,
    "FusedAddRMSNorm": _fused_add_rms_norm,
    "FusedGateUpSiLUMul": _fused_gate_up_silu_mul,
    "FusedLinearCrossEntropy": _fused_linear_cross_entropy,
    "FusedLinearJSD": _fused_linear_jsd,
    "FusedMoE": _fused_moe,
    "GELUMul": _gelu_mul,
    "GroupNorm": _group_norm,
    "JSD": _jsd,
    "KLDivLoss": _kl_div,
    "LayerNorm": _layer_norm,
    "Llama4Rope": _llama4_rope,
    "MLP": _mlp,
    "Qwen2VLMRope": _qwen2vl_mrope,
    "RMSNorm": _rms_norm,
    "ReLUSquared": _relu_squared,
    "Rope": _rope,
    "SiLUMul": _silu_mul,
    "Softmax": _softmax,
    "Sparsemax": _sparsemax,
    "TVDLoss": _tvd,
    "TiledMLP": _tiled_mlp,
    **{name: lacks.refusing(f"Liger{name}Function") for name in lacks.OPS.split()},
}
for _name, _call in _CALLS.items():
    globals()[f"Liger{_name}Function"] = as_class(f"Liger{_name}Function", _call, __name__)
GrpoLossFunction = as_class("GrpoLossFunction", _grpo, __name__)

__all__ = [*(f"Liger{name}Function" for name in _CALLS), "GrpoLossFunction", "apply_tiled_mlp"]
