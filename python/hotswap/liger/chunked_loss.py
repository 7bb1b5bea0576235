"""What Liger has in liger_kernel.chunked_loss: losses over a linear head, as modules and, with the arguments in another
order, as functions (liger_kernel.chunked_loss.functional)."""

from hotswap.liger.distillation import LigerFusedLinearCosineSimilarityLoss, LigerFusedLinearJSDLoss
from hotswap.liger.function import as_class
from hotswap.liger.grpo import LigerFusedLinearGRPOLoss
from hotswap.liger.preference import (
    LigerFusedLinearCPOLoss,
    LigerFusedLinearDPOLoss,
    LigerFusedLinearKTOLoss,
    LigerFusedLinearORPOLoss,
    LigerFusedLinearSimPOLoss,
)


def liger_fused_linear_dpo(
    _input,
    weight,
    target,
    bias=None,
    ref_input=None,
    ref_weight=None,
    ref_bias=None,
    ignore_index=-100,
    beta=0.1,
    compute_nll_loss=False,
    compiled=True,
    use_ref_model=True,
    average_log_prob=False,
    chunk_size=1,
    loss_type="sigmoid",
    label_smoothing=0.0,
    discopop_tau=0.05,
    alpha=1.0,
):
    loss = LigerFusedLinearDPOLoss(
        ignore_index,
        beta,
        alpha,
        compute_nll_loss,
        use_ref_model=use_ref_model,
        average_log_prob=average_log_prob,
        loss_type=loss_type,
        label_smoothing=label_smoothing,
        discopop_tau=discopop_tau,
    )
    return loss(weight, _input, target, bias, ref_input, ref_weight, ref_bias)


def liger_fused_linear_cpo(
    _input,
    weight,
    target,
    bias=None,
    ignore_index=-100,
    beta=0.1,
    alpha=1.0,
    label_smoothing=0.0,
    compute_nll_loss=True,
    compiled=True,
    average_log_prob=False,
    chunk_size=1,
):
    options = (ignore_index, beta, alpha, label_smoothing, compute_nll_loss, compiled, average_log_prob)
    return LigerFusedLinearCPOLoss(*options)(weight, _input, target, bias)


def liger_fused_linear_simpo(
    _input,
    weight,
    target,
    bias=None,
    ignore_index=-100,
    beta=0.1,
    alpha=1.0,
    label_smoothing=0.0,
    compute_nll_loss=False,  # on, in the module
    compiled=True,
    gamma=0.5,
    chunk_size=1,
):
    options = (ignore_index, beta, alpha, label_smoothing, compute_nll_loss, compiled, gamma)
    return LigerFusedLinearSimPOLoss(*options)(weight, _input, target, bias)


def liger_fused_linear_orpo(
    _input,
    weight,
    target,
    bias=None,
    ignore_index=-100,
    beta=0.1,
    compute_nll_loss=True,
    nll_target=None,
    compiled=True,
    chunk_size=1,
):
    return LigerFusedLinearORPOLoss(ignore_index, beta, compute_nll_loss)(weight, _input, target, bias, nll_target)


def liger_fused_linear_kto(
    _input,
    weight,
    target,
    preference_labels,
    bias=None,
    ref_input=None,
    ref_weight=None,
    ref_bias=None,
    kl=None,
    ignore_index=-100,
    beta=0.1,
    compiled=True,
    use_ref_model=True,  # off, in the module
    average_log_prob=False,
    chunk_size=1,
):
    loss = LigerFusedLinearKTOLoss(ignore_index, beta, compiled, use_ref_model, average_log_prob)
    return loss(_input, weight, target, bias, preference_labels, ref_input, ref_weight, ref_bias, kl)


def liger_fused_linear_grpo(
    _input,
    weight,
    selected_token_ids,
    attention_mask,
    advantages,
    bias=None,
    ref_per_token_logps=None,
    old_per_token_logps=None,
    ref_input=None,
    ref_weight=None,
    ref_bias=None,
    beta=0.04,
    epsilon_low=0.2,
    epsilon_high=0.2,
    loss_type="dapo",
    max_completion_length=None,
    importance_sampling_level="token",
    sapo_temperature_pos=1.0,
    sapo_temperature_neg=1.05,
    temperature=1.0,
    compiled=True,
    use_ref_model=True,
    chunk_size=1,
    vllm_is_ratio=None,
    delta=None,
    use_bias_correction_kl=False,
    vespo_k_pos=2.0,
    vespo_lambda_pos=3.0,
    vespo_k_neg=3.0,
    vespo_lambda_neg=2.0,
    num_items_in_batch=None,
):
    loss = LigerFusedLinearGRPOLoss(
        beta, compiled, use_ref_model, chunk_size, epsilon_low, epsilon_high, loss_type, max_completion_length,
        importance_sampling_level, sapo_temperature_pos, sapo_temperature_neg, temperature, delta, use_bias_correction_kl,
        vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg,
    )  # fmt: skip
    return loss(
        _input, weight, selected_token_ids, attention_mask, advantages, bias, ref_per_token_logps, old_per_token_logps,
        ref_input, ref_weight, ref_bias, vllm_is_ratio, num_items_in_batch,
    )  # fmt: skip


def _distilled(module):
    def loss(
        student_input,
        student_weight,
        teacher_input,
        teacher_weight,
        true_labels,
        student_bias=None,
        teacher_bias=None,
        weight_hard_loss=0.5,
        weight_soft_loss=0.5,
        beta=0.5,
        ignore_index=-100,
        temperature=1.0,
        compiled=True,
        chunk_size=1024,
        return_soft_hard_loss=False,
    ):
        options = (weight_hard_loss, weight_soft_loss, beta, ignore_index, temperature, compiled, chunk_size)
        inputs = (student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias)
        return module(*options, return_soft_hard_loss)(*inputs)

    return loss


liger_fused_linear_jsd = _distilled(LigerFusedLinearJSDLoss)  # hotswap.liger_fused_linear_jsd is the divergence alone
liger_fused_linear_cosine = _distilled(LigerFusedLinearCosineSimilarityLoss)

# As liger_kernel.chunked_loss has them: classes of which the functions are the apply.
for _name, _call in {
    "CPO": liger_fused_linear_cpo,
    "CosineSimilarity": liger_fused_linear_cosine,
    "DPO": liger_fused_linear_dpo,
    "GRPO": liger_fused_linear_grpo,
    "JSD": liger_fused_linear_jsd,
    "KTO": liger_fused_linear_kto,
    "ORPO": liger_fused_linear_orpo,
    "SimPO": liger_fused_linear_simpo,
}.items():
    globals()[f"LigerFusedLinear{_name}Function"] = as_class(f"LigerFusedLinear{_name}Function", _call, __name__)

__all__ = [name for name in dir() if name.lower().startswith("liger")]
