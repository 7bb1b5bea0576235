"""Liger's softmax, sparsemax and divergences of rows of probabilities, by the package of that name."""

from torch import nn

from hotswap.core.packages import load

_probability = load("probability")

def liger_softmax(x):
    """Over the last dimension."""
    return _probability.softmax(x)


def liger_sparsemax(input, dim=-1):
    return _probability.sparsemax(input, dim)


class LigerSoftmax(nn.Module):
    """Over the last dimension."""

    def forward(self, x):
        return liger_softmax(x)


class LigerSparsemax(nn.Module):
    def __init__(self, dim=-1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return liger_sparsemax(x, self.dim)

    def extra_repr(self):
        return f"dim={self.dim}"


def liger_kl_div(input, target, size_average=True, reduce=True, reduction="mean", log_target=False, eps=1e-10):
    """KL(target || e^input) of [rows, classes]; size_average and reduce are torch's old words for reduction, and ignored as
    in Liger. target has no gradient."""
    return _probability.kl_div(input, target, reduction=reduction, log_target=log_target, eps=eps)


class LigerKLDIVLoss(nn.KLDivLoss):
    def __init__(self, eps=1e-10, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred, y_true):
        return liger_kl_div(y_pred, y_true, reduction=self.reduction, log_target=self.log_target, eps=self.eps)


def liger_jsd(input, target, shift_labels=None, beta=0.5, ignore_index=-100):
    """input, target [rows, classes] log-probabilities of the student and the teacher; the mean over the rows whose label
    counts, in input's type."""
    return _probability.jsd(input, target, shift_labels, ignore_index, beta).to(input.dtype)


class LigerJSD(nn.Module):
    def __init__(self, beta=0.5, ignore_index=-100):
        super().__init__()
        if not 0 <= beta <= 1:
            raise ValueError(f"LigerJSD: expected beta in [0, 1]; got {beta}; pass 0.5 for the symmetric divergence")
        self.beta, self.ignore_index = beta, ignore_index

    def forward(self, log_q, log_p, shift_labels=None):
        return liger_jsd(log_q, log_p, shift_labels, self.beta, self.ignore_index)


def liger_tvd(input, target, shift_labels=None, reduction="mean", ignore_index=-100):
    """The total variation distance of [rows, classes] probabilities."""
    return _probability.tvd(input, target, shift_labels, ignore_index, reduction)


class LigerTVDLoss(nn.Module):
    def __init__(self, reduction="batchmean", ignore_index=-100):
        super().__init__()
        if reduction not in ("batchmean", "mean", "sum", "none"):
            raise ValueError(
                f"LigerTVDLoss: expected reduction batchmean, mean, sum or none; got {reduction!r}; pass one of them"
            )
        self.reduction, self.ignore_index = reduction, ignore_index

    def forward(self, p, q, shift_labels=None):
        return liger_tvd(p, q, shift_labels, self.reduction, self.ignore_index)


__all__ = [name for name in dir() if name.lower().startswith("liger")]
