"""Types of the names that hotswap shares with Liger. There is no module of this name at run time: hotswap/__init__.pyi has
these names, and hotswap finds each where it is defined (liger_places.py)."""

from typing import Any, Callable, NoReturn

import torch
from torch import Tensor, nn


class LigerAttnResFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerBlockSparseTop2MLP(nn.Module):
    def __init__(self, config: Any) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerCrossEntropyFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerCrossEntropyLoss(nn.Module):
    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, lse_square_scale: float = 0.0, label_smoothing:
        float = 0.0, reduction: str = "mean", softcap: float | None = None, return_z_loss: bool = False,
        return_token_accuracy: bool = False, return_predicted_tokens: bool = False,
    ) -> None: ...
    def forward(self, _input: Tensor, target: Tensor) -> Any: ...

class LigerDyT(nn.Module):
    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerDyTFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerEmbedding:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerEmbeddingFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerExpertParallelFusedMoe:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerExperts(nn.Module):
    def __init__(self, config: Any) -> None: ...
    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor: ...

class LigerFalconH1MLP(nn.Module):
    def __init__(self, config: Any) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerFalconH1SwiGLUMLP(nn.Module):
    def __init__(self, config: Any) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

def LigerForCausalLMLoss(
    hidden_states: Tensor, lm_head_weight: Tensor, labels: Tensor, hidden_size: int, num_items_in_batch: int | Tensor |
    None = None, ignore_index: int = -100, shift_labels: Tensor | None = None, final_logit_softcapping: float | None =
    None, return_token_accuracy: bool = False, return_predicted_tokens: bool = False, **kwargs: Any,
) -> Any: ...

class LigerForCausalLMLossLayer(nn.Module):
    def __init__(self) -> None: ...
    def forward(
        self, logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Tensor | int | float | None = None,
        ignore_index: int = -100, shift_labels: Tensor | None = None, **kwargs: Any,
    ) -> Any: ...

class LigerFusedAddRMSNorm(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 0.0, casting_mode: str = "llama", init_fn: str =
        "ones", in_place: bool = False,
    ) -> None: ...
    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...

class LigerFusedAddRMSNormFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedCETVDFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedCETVDLoss:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerFusedGateUpSiLUMulFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearCPOFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearCPOLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, beta: float = 0.1, alpha: float = 1.0, label_smoothing: float = 0.0,
        compute_nll_loss: bool = True, compiled: bool = True, average_log_prob: bool = False, chunk_size: int = 1,
    ) -> None: ...
    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Any: ...

class LigerFusedLinearCosineSimilarityFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearCosineSimilarityLoss(nn.Module):
    def __init__(
        self, weight_hard_loss: float = 0.5, weight_soft_loss: float = 0.5, beta: float = 0.5, ignore_index: int = -100,
        temperature: float = 1.0, compiled: bool = True, chunk_size: int = 1024, return_soft_hard_loss: bool = False,
    ) -> None: ...
    def forward(
        self, student_input: Tensor, student_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor, true_labels:
        Tensor, student_bias: Tensor | None = None, teacher_bias: Tensor | None = None,
    ) -> Any: ...

class LigerFusedLinearCrossEntropyFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearCrossEntropyLoss(nn.Module):
    def __init__(
        self, ce_weight: Tensor | None = None, ignore_index: int = -100, lse_square_scale: float = 0.0, label_smoothing:
        float = 0.0, reduction: str = "mean", softcap: float | None = None, return_z_loss: bool = False, accum_dtype:
        torch.dtype | None = None, use_token_scaling: bool = False, return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None: ...
    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Any: ...

class LigerFusedLinearDPOFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearDPOLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, beta: float = 0.1, alpha: float = 1.0, compute_nll_loss: bool = False, compiled:
        bool = True, use_ref_model: bool = True, average_log_prob: bool = False, chunk_size: int = 1, loss_type: str =
        "sigmoid", label_smoothing: float = 0.0, discopop_tau: float = 0.05,
    ) -> None: ...
    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None, ref_input: Tensor | None =
        None, ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, *, ref_logps: Tensor | None = None,
    ) -> Any: ...

class LigerFusedLinearGRPOFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearGRPOLoss(nn.Module):
    def __init__(
        self, beta: float = 0.04, compiled: bool = True, use_ref_model: bool = True, chunk_size: int = 1, epsilon_low:
        float = 0.2, epsilon_high: float = 0.2, loss_type: str = "dapo", max_completion_length: int | None = None,
        importance_sampling_level: str = "token", sapo_temperature_pos: float = 1.0, sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0, delta: float | None = None, use_bias_correction_kl: bool = False, vespo_k_pos: float =
        2.0, vespo_lambda_pos: float = 3.0, vespo_k_neg: float = 3.0, vespo_lambda_neg: float = 2.0,
    ) -> None: ...
    def forward(
        self, _input: Tensor, lin_weight: Tensor, selected_token_ids: Tensor, attention_mask: Tensor, advantages:
        Tensor, bias: Tensor | None = None, ref_per_token_logps: Tensor | None = None, old_per_token_logps: Tensor |
        None = None, ref_input: Tensor | None = None, ref_weight: Tensor | None = None, ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None, num_items_in_batch: Tensor | int | float | None = None,
    ) -> Any: ...

class LigerFusedLinearJSD(nn.Module):
    def __init__(
        self, jsd_beta: float = 0.5, ignore_index: int = -100, temperature: float = 1.0, accum_dtype: torch.dtype | None
        = None,
    ) -> None: ...
    def forward(
        self, student_input: Tensor, student_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor,
        shift_labels: Tensor | None = None,
    ) -> Tensor: ...

class LigerFusedLinearJSDFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearJSDLoss(nn.Module):
    def __init__(
        self, weight_hard_loss: float = 0.5, weight_soft_loss: float = 0.5, beta: float = 0.5, ignore_index: int = -100,
        temperature: float = 1.0, compiled: bool = True, chunk_size: int = 1024, return_soft_hard_loss: bool = False,
    ) -> None: ...
    def forward(
        self, student_input: Tensor, student_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor, true_labels:
        Tensor, student_bias: Tensor | None = None, teacher_bias: Tensor | None = None,
    ) -> Any: ...

class LigerFusedLinearKLDivFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearKLDivLoss:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerFusedLinearKTOFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearKTOLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, beta: float = 0.1, compiled: bool = True, use_ref_model: bool = False,
        average_log_prob: bool = False, chunk_size: int = 1,
    ) -> None: ...
    def forward(
        self, _input: Tensor, lin_weight: Tensor, target: Tensor, bias: Tensor | None = None, preference_labels: Tensor
        | None = None, ref_input: Tensor | None = None, ref_weight: Tensor | None = None, ref_bias: Tensor | None =
        None, kl: Tensor | None = None, *, ref_logps: Tensor | None = None,
    ) -> Any: ...

class LigerFusedLinearORPOFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearORPOLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, beta: float = 0.1, compute_nll_loss: bool = True, compiled: bool = True,
        chunk_size: int = 1,
    ) -> None: ...
    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None, nll_target: Tensor | None
        = None,
    ) -> Any: ...

class LigerFusedLinearScaledCrossEntropyFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearScaledCrossEntropyTPFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearSimPOFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedLinearSimPOLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, beta: float = 0.1, alpha: float = 1.0, label_smoothing: float = 0.0,
        compute_nll_loss: bool = True, compiled: bool = True, gamma: float = 0.5, chunk_size: int = 1,
    ) -> None: ...
    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Any: ...

class LigerFusedMoEFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedNeighborhoodAttention:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerFusedNeighborhoodAttentionConfig:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerFusedNeighborhoodAttentionFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerFusedNeighborhoodAttentionLayer:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerGEGLUMLP(nn.Module):
    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerGEGLUMLPForGemma4(nn.Module):
    def __init__(self, config: Any, layer_idx: int | None = None) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerGELUMulFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerGroupNorm(nn.Module):
    def __init__(
        self, num_channels: int, num_groups: int, eps: float = 1e-06, bias: bool = False, init_fn: str = "ones",
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerGroupNormFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerHunyuanV1SwiGLUMLP(nn.Module):
    def __init__(self, config: Any, layer_idx: int | None = None, is_shared_mlp: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerJSD(nn.Module):
    def __init__(self, beta: float = 0.5, ignore_index: int = -100) -> None: ...
    def forward(self, log_q: Tensor, log_p: Tensor, shift_labels: Tensor | None = None) -> Tensor: ...

class LigerJSDFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerKLDIVLoss(nn.Module):
    def __init__(self, eps: float = 1e-10, *args: Any, **kwargs: Any) -> None: ...
    def forward(self, y_pred: Tensor, y_true: Tensor) -> Tensor: ...

class LigerKLDivLossFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerLayerNorm(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, bias: bool = False, init_fn: str = "ones", impl: str | None = None,
        mode: str | None = None, backend: str | None = None,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerLayerNormFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerLlama4RopeFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerMHC:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerMHCCoeffsFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerMHCPostResFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerMHCPreFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerMLP(nn.Module):
    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerMLPFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerModulatedRMSNorm:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerModulatedRMSNormFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerMultiTokenAttention:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerMultiTokenAttentionFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerPhi3SwiGLUMLP(nn.Module):
    def __init__(self, config: Any) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerPolyNorm:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

class LigerPolyNormFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerQwen2VLMRopeFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerQwen3MoeSwiGLUMLP(nn.Module):
    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerRMSNorm(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 0.0, casting_mode: str = "llama", init_fn: str =
        "ones", in_place: bool = True, row_mode: str | None = None, elementwise_affine: bool = True,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForGemma(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 1.0, casting_mode: str = "gemma", init_fn: str =
        "zeros", in_place: bool = True, row_mode: str | None = None,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForGemma2(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 1.0, casting_mode: str = "gemma", init_fn: str =
        "zeros", in_place: bool = True, row_mode: str | None = None,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForGemma3(nn.Module):
    def __init__(
        self, dim: int, eps: float = 1e-06, offset: float = 1.0, casting_mode: str = "gemma", init_fn: str = "zeros",
        in_place: bool = False,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForGemma4(nn.Module):
    def __init__(
        self, dim: int | None = None, eps: float = 1e-06, offset: float = 0.0, casting_mode: str = "gemma", init_fn: str
        = "ones", in_place: bool = False, with_scale: bool = True,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForGlm4(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 0.0, casting_mode: str = "llama", init_fn: str =
        "ones", in_place: bool = True, row_mode: str | None = None, elementwise_affine: bool = True,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForMuseGlimmer(nn.Module):
    def __init__(
        self, dim: int | None = None, eps: float = 1e-06, offset: float = 0.0, casting_mode: str = "gemma", init_fn: str
        = "ones", in_place: bool = False, with_scale: bool = True,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForMuseGlimmerTextCentered(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 1.0, casting_mode: str = "gemma", init_fn: str =
        "zeros", in_place: bool = True, row_mode: str | None = None,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForOlmo2(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 0.0, casting_mode: str = "llama", init_fn: str =
        "ones", in_place: bool = True, row_mode: str | None = None, elementwise_affine: bool = True,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormForQwen3Next(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-06, offset: float = 1.0, casting_mode: str = "gemma", init_fn: str =
        "zeros", in_place: bool = True, row_mode: str | None = None,
    ) -> None: ...
    def forward(self, hidden_states: Tensor) -> Tensor: ...

class LigerRMSNormFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerReLUSquared(nn.Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerReLUSquaredFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerRopeFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerSiLUMulFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerSoftmax(nn.Module):
    def __init__(self) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerSoftmaxFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerSparsemax(nn.Module):
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerSparsemaxFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerSwiGLUMLP(nn.Module):
    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerSwiGLUMLPForMuseGlimmer(nn.Module):
    def __init__(self, config: Any, intermediate_size: int | None = None, bias: bool = False) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerTVDLoss(nn.Module):
    def __init__(self, reduction: str = "batchmean", ignore_index: int = -100) -> None: ...
    def forward(self, p: Tensor, q: Tensor, shift_labels: Tensor | None = None) -> Tensor: ...

class LigerTVDLossFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerTiledGEGLUMLP(nn.Module):
    def __init__(self, config: Any, num_shards: int | None = None) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerTiledMLPFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerTiledSwiGLUMLP(nn.Module):
    def __init__(self, config: Any, num_shards: int | None = None) -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

class LigerVocabParallelCEFunction:
    @staticmethod
    def apply(*args: Any, **kwargs: Any) -> Any: ...

class LigerVocabParallelCrossEntropy:
    def __init__(*args: Any, **kwargs: Any) -> None: ...

def apply_liger_kernel_to_deepseek_v2(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_deepseek_v3(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_deepseek_v4(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = False, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_exaone4(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_falcon_h1(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gemma(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gemma2(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gemma3(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, layer_norm: bool = True,
    rms_norm: bool = True, geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gemma3_text(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gemma4(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, layer_norm: bool = False,
    rms_norm: bool = True, geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gemma4_text(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_glm4(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_glm4v(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_glm4v_moe(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_gpt_oss(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = False, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_granite(
    rope: bool = True, cross_entropy: bool = True, fused_linear_cross_entropy: bool = False, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_hunyuan_v1_dense(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_hunyuan_v1_moe(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_internvl(
    cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True, layer_norm: bool =
    True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_llama(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_llama4(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None, layer_norm: bool = True,
) -> None: ...
def apply_liger_kernel_to_llava(
    cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_ministral(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_mistral(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_mixtral(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_mllama(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, layer_norm: bool = True,
    rms_norm: bool = True, swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_muse_glimmer(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, layer_norm: bool = True,
    rms_norm: bool = True, swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_nemotron(
    relu_squared: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, model: nn.Module |
    None = None,
) -> None: ...
def apply_liger_kernel_to_olmo2(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_olmo3(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_paligemma(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, layer_norm: bool = True,
    rms_norm: bool = True, geglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_phi3(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_pixtral(
    rope: bool = True, rms_norm: bool = True, swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen2(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen2_5_vl(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen2_vl(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    layer_norm: bool = True, swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3_5(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3_5_moe(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3_moe(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3_next(
    rope: bool = False, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3_vl(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = False, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_qwen3_vl_moe(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_smollm3(
    rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
    swiglu: bool = True, model: nn.Module | None = None,
) -> None: ...
def apply_liger_kernel_to_smolvlm(
    cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True, layer_norm: bool =
    True, model: nn.Module | None = None,
) -> None: ...
def liger_attn_res(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int =
    -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0, lse_square_scale: float =
    0.0, softcap: float | None = None, return_z_loss: bool = False, return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Any: ...
def liger_dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Tensor: ...
def liger_fused_add_rms_norm(
    X: Tensor, R: Tensor, W: Tensor, eps: float, offset: float = 0.0, casting_mode: str = "llama", in_place: bool =
    True,
) -> tuple[Tensor, Tensor]: ...
def liger_fused_linear_cosine(
    student_input: Tensor, student_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor, true_labels: Tensor,
    student_bias: Tensor | None = None, teacher_bias: Tensor | None = None, weight_hard_loss: float = 0.5,
    weight_soft_loss: float = 0.5, beta: float = 0.5, ignore_index: int = -100, temperature: float = 1.0, compiled: bool
    = True, chunk_size: int = 1024, return_soft_hard_loss: bool = False,
) -> Any: ...
def liger_fused_linear_cpo(
    _input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100, beta: float =
    0.1, alpha: float = 1.0, label_smoothing: float = 0.0, compute_nll_loss: bool = True, compiled: bool = True,
    average_log_prob: bool = False, chunk_size: int = 1,
) -> Any: ...
def liger_fused_linear_cross_entropy(
    input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ce_weight: Tensor | None = None,
    ignore_index: int = -100, lse_square_scale: float = 0.0, label_smoothing: float = 0.0, reduction: str = "mean",
    softcap: float | None = None, return_z_loss: bool = False, accum_dtype: torch.dtype | None = None,
    use_token_scaling: bool = False, return_token_accuracy: bool = False, return_predicted_tokens: bool = False,
    chunk_mem_const: int = 1,
) -> Any: ...
def liger_fused_linear_dpo(
    _input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ref_input: Tensor | None = None,
    ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, ignore_index: int = -100, beta: float = 0.1,
    compute_nll_loss: bool = False, compiled: bool = True, use_ref_model: bool = True, average_log_prob: bool = False,
    chunk_size: int = 1, loss_type: str = "sigmoid", label_smoothing: float = 0.0, discopop_tau: float = 0.05, alpha:
    float = 1.0,
) -> Any: ...
def liger_fused_linear_grpo(
    _input: Tensor, weight: Tensor, selected_token_ids: Tensor, attention_mask: Tensor, advantages: Tensor, bias: Tensor
    | None = None, ref_per_token_logps: Tensor | None = None, old_per_token_logps: Tensor | None = None, ref_input:
    Tensor | None = None, ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, beta: float = 0.04,
    epsilon_low: float = 0.2, epsilon_high: float = 0.2, loss_type: str = "dapo", max_completion_length: int | None =
    None, importance_sampling_level: str = "token", sapo_temperature_pos: float = 1.0, sapo_temperature_neg: float =
    1.05, temperature: float = 1.0, compiled: bool = True, use_ref_model: bool = True, chunk_size: int = 1,
    vllm_is_ratio: Tensor | None = None, delta: float | None = None, use_bias_correction_kl: bool = False, vespo_k_pos:
    float = 2.0, vespo_lambda_pos: float = 3.0, vespo_k_neg: float = 3.0, vespo_lambda_neg: float = 2.0,
    num_items_in_batch: Tensor | int | float | None = None,
) -> Any: ...
def liger_fused_linear_jsd(
    student_input: Tensor, student_weight: Tensor, teacher_input: Tensor, teacher_weight: Tensor, shift_labels: Tensor |
    None = None, jsd_beta: float = 0.5, ignore_index: int = -100, temperature: float = 1.0, accum_dtype: torch.dtype |
    None = None,
) -> Any: ...
def liger_fused_linear_kl_div(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_fused_linear_kto(
    _input: Tensor, weight: Tensor, target: Tensor, preference_labels: Tensor, bias: Tensor | None = None, ref_input:
    Tensor | None = None, ref_weight: Tensor | None = None, ref_bias: Tensor | None = None, kl: Tensor | None = None,
    ignore_index: int = -100, beta: float = 0.1, compiled: bool = True, use_ref_model: bool = True, average_log_prob:
    bool = False, chunk_size: int = 1,
) -> Any: ...
def liger_fused_linear_orpo(
    _input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100, beta: float =
    0.1, compute_nll_loss: bool = True, nll_target: Tensor | None = None, compiled: bool = True, chunk_size: int = 1,
) -> Any: ...
def liger_fused_linear_scaled_cross_entropy_tp(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_fused_linear_simpo(
    _input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100, beta: float =
    0.1, alpha: float = 1.0, label_smoothing: float = 0.0, compute_nll_loss: bool = False, compiled: bool = True, gamma:
    float = 0.5, chunk_size: int = 1,
) -> Any: ...
def liger_fused_neighborhood_attention(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_geglu(a: Tensor, b: Tensor) -> Tensor: ...
def liger_group_norm(
    X: Tensor, affine_scaling_weight: Tensor, affine_shifting_bias: Tensor, num_channels: int, num_groups: int, eps:
    float,
) -> Tensor: ...
def liger_jsd(
    input: Tensor, target: Tensor, shift_labels: Tensor | None = None, beta: float = 0.5, ignore_index: int = -100,
) -> Tensor: ...
def liger_kl_div(
    input: Tensor, target: Tensor, size_average: bool = True, reduce: bool = True, reduction: str = "mean", log_target:
    bool = False, eps: float = 1e-10,
) -> Tensor: ...
def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor: ...
def liger_llama4_text_rotary_pos_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]: ...
def liger_llama4_vision_rotary_pos_emb(query: Tensor, key: Tensor, freqs_ci: Tensor) -> tuple[Tensor, Tensor]: ...
def liger_mhc_apply(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_mhc_coeffs(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_mhc_forward(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_mhc_post_res(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_mhc_pre(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_modulated_rms_norm(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_multi_token_attention(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_multimodal_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int], unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]: ...
def liger_poly_norm(*args: Any, **kwargs: Any) -> NoReturn: ...
def liger_qwen2vl_mrope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int], unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]: ...
def liger_relu_squared(x: Tensor) -> Tensor: ...
def liger_rms_norm(
    X: Tensor, W: Tensor, eps: float, offset: float = 0.0, casting_mode: str = "llama", in_place: bool = True, row_mode:
    str | None = None,
) -> Tensor: ...
def liger_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, unsqueeze_dim: int = 1,
    rotary_dim: int | None = None,
) -> tuple[Tensor, Tensor]: ...
def liger_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, unsqueeze_dim: int = 1,
    rotary_dim: int | None = None,
) -> tuple[Tensor, Tensor]: ...
def liger_rotary_pos_emb_gpt_oss(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]: ...
def liger_rotary_pos_emb_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]: ...
def liger_softmax(x: Tensor) -> Tensor: ...
def liger_sparsemax(input: Tensor, dim: int = -1) -> Tensor: ...
def liger_swiglu(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor: ...
def liger_tvd(
    input: Tensor, target: Tensor, shift_labels: Tensor | None = None, reduction: str = "mean", ignore_index: int =
    -100,
) -> Tensor: ...
