"""liger_kernel.functional: the same arguments, our ops. impl, mode and backend choose how Liger computes, and change nothing here."""

from hotswap.liger import distillation, loss, mlp, norm, probability, rotary


def rms_norm(
    x, weight, eps=1e-6, *, offset=0.0, casting_mode="llama", in_place=False, row_mode=None, impl=None, mode=None, backend=None
):
    return norm.liger_rms_norm(x, weight, eps, offset, casting_mode)


def layer_norm(x, weight, bias=None, eps=1e-6, *, impl=None, mode=None, backend=None):
    return norm.liger_layer_norm(x, weight, bias, eps)


def fused_add_rms_norm(
    X, R, W, eps=1e-6, offset=0.0, casting_mode="llama", in_place=False, *, impl=None, mode=None, backend=None
):
    """(RMSNorm(h), h) with h = X + R."""
    return norm.liger_fused_add_rms_norm(X, R, W, eps, offset, casting_mode)


def softmax(x, *, impl=None, mode=None, backend=None):
    return probability.liger_softmax(x)


def swiglu(a, b, gate_multiplier=1.0, down_multiplier=1.0, *, impl=None, mode=None, backend=None):
    return mlp.liger_swiglu(a, b, gate_multiplier, down_multiplier)


def geglu(a, b, *, impl=None, mode=None, backend=None):
    return mlp.liger_geglu(a, b)


def rope(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, *, impl=None, mode=None, backend=None):
    return rotary.liger_rope(q, k, cos, sin, position_ids, unsqueeze_dim)


def jsd(_input, target, shift_labels=None, beta=0.5, ignore_index=-100, *, impl=None, mode=None, backend=None):
    return probability.liger_jsd(_input, target, shift_labels, beta, ignore_index)


def kl_div(y_pred, y_true, reduction="batchmean", log_target=False, eps=1e-10, *, impl=None, mode=None, backend=None):
    return probability.liger_kl_div(y_pred, y_true, reduction=reduction, log_target=log_target, eps=eps)


def cross_entropy(
    input,
    target,
    weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    *,
    impl=None,
    mode=None,
    backend=None,
):
    """(loss, z_loss, token_accuracy, predicted_tokens), None for what was not asked for."""
    return parts_of(
        loss.liger_cross_entropy(
            input,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            lse_square_scale=lse_square_scale,
            softcap=softcap,
            return_z_loss=return_z_loss,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )
    )


def fused_linear_jsd(
    student_input,
    student_weight,
    teacher_input,
    teacher_weight,
    shift_labels=None,
    jsd_beta=0.5,
    ignore_index=-100,
    temperature=1.0,
    *,
    impl=None,
    mode=None,
    backend=None,
):
    heads = student_input, student_weight, teacher_input, teacher_weight
    return distillation.liger_fused_linear_jsd(*heads, shift_labels, jsd_beta, ignore_index, temperature)


def fused_linear_cross_entropy(
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
    *,
    impl=None,
    mode=None,
    backend=None,
):
    """(loss, z_loss, token_accuracy, predicted_tokens), None for what was not asked for."""
    return parts_of(
        loss.liger_fused_linear_cross_entropy(
            _input,
            weight,
            target,
            bias,
            ce_weight,
            ignore_index,
            lse_square_scale,
            label_smoothing,
            reduction,
            softcap,
            return_z_loss,
            accum_dtype,
            use_token_scaling,
            return_token_accuracy,
            return_predicted_tokens,
        )
    )


def parts_of(result) -> tuple:
    """(loss, z_loss, token_accuracy, predicted_tokens) of a loss or a CrossEntropyOutput."""
    if not isinstance(result, loss.CrossEntropyOutput):
        return result, None, None, None
    return result.loss, result.z_loss, result.token_accuracy, result.predicted_tokens


__all__ = """cross_entropy fused_add_rms_norm fused_linear_cross_entropy fused_linear_jsd geglu jsd kl_div layer_norm rms_norm rope
softmax swiglu""".split()
