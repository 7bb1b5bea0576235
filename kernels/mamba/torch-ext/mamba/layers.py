"""The seven functions of transformers' mixers, as `kernels` wants functions: a layer's forward with their arguments. And
the norm behind Mamba-2's scan."""

import math

import torch

from . import _package
from ._conv import causal_conv1d_fn as _causal_conv1d
from ._conv import causal_conv1d_update as _causal_conv1d_update
from ._mixers import mamba_inner_fn as _inner
from ._mixers import mamba_split_conv1d_scan_combined as _split
from ._scan import selective_scan_fn as _selective_scan
from ._scan import selective_state_update as _selective_state_update
from ._sequences import of_keywords as _of_keywords
from ._ssd import mamba_chunk_scan_combined as _chunk_scan
from ._ssd import rmsnorm_fn as _gated_norm


class causal_conv1d_fn(_package.Layer):
    def forward(self, hidden_states, weight, bias=None, activation=None, **kwargs):
        batch, _, length = hidden_states.shape
        seq_idx = _of_keywords("causal_conv1d_fn", kwargs, batch, length)
        return _causal_conv1d(hidden_states, weight, bias, seq_idx, activation=activation)


class causal_conv1d_update(_package.Layer):
    def forward(self, hidden_states, conv_state, weight, bias=None, activation=None):
        return _causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


class selective_scan_fn(_package.Layer):
    """use_mambapy and use_associative_scan choose among transformers' own ways."""

    def forward(
        self,
        hidden_states,
        dt,
        A,
        B,
        C,
        D=None,
        z=None,
        delta_bias=None,
        delta_softplus=False,
        return_last_state=False,
        use_mambapy=False,
        use_associative_scan=False,
        **kwargs,
    ):
        batch, _, length = hidden_states.shape
        seq_idx = _of_keywords("selective_scan_fn", kwargs, batch, length)
        inputs = hidden_states, dt, A, B, C, D, z, delta_bias
        return _selective_scan(*inputs, delta_softplus, return_last_state, seq_idx=seq_idx)


class selective_state_update(_package.Layer):
    def forward(self, state, hidden_states, dt, A, B, C, D=None, dt_bias=None, dt_softplus=False, z=None, **kwargs):
        _of_keywords("selective_state_update", kwargs, hidden_states.shape[0], 1)
        return _selective_state_update(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus)


class mamba_inner_fn(_package.Layer):
    def forward(
        self,
        xz,
        conv1d_weight,
        conv1d_bias,
        x_proj_weight,
        delta_proj_weight,
        out_proj_weight,
        out_proj_bias,
        A,
        B=None,
        C=None,
        D=None,
        delta_bias=None,
        delta_softplus=True,
        b_rms_weight=None,
        c_rms_weight=None,
        dt_rms_weight=None,
        b_c_dt_rms_eps=1e-6,
        **kwargs,
    ):
        if _of_keywords("mamba_inner_fn", kwargs, xz.shape[0], xz.shape[2]) is not None:
            raise ValueError("mamba_inner_fn: expected one sequence a row; got packed ones; call the convolution and the scan")
        weights = conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias
        return _inner(
            xz,
            *weights,
            A,
            B,
            C,
            D,
            delta_bias,
            delta_softplus=delta_softplus,
            b_rms_weight=b_rms_weight,
            c_rms_weight=c_rms_weight,
            dt_rms_weight=dt_rms_weight,
            b_c_dt_rms_eps=b_c_dt_rms_eps,
        )


class mamba_chunk_scan_combined(_package.Layer):
    def forward(
        self,
        hidden_states,
        dt,
        A,
        B,
        C,
        chunk_size,
        D=None,
        dt_bias=None,
        initial_states=None,
        dt_softplus=False,
        dt_limit=(0.0, math.inf),
        return_final_states=False,
        **kwargs,
    ):
        z = kwargs.pop("z", None)
        seq_idx = _of_keywords("mamba_chunk_scan_combined", kwargs, *hidden_states.shape[:2])
        return _chunk_scan(
            *(hidden_states, dt, A, B, C, chunk_size, D, z, dt_bias, initial_states, seq_idx),
            dt_softplus=dt_softplus,
            dt_limit=dt_limit,
            return_final_states=return_final_states,
        )


class mamba_split_conv1d_scan_combined(_package.Layer):
    def forward(
        self,
        zxbcdt,
        conv1d_weight,
        conv1d_bias,
        dt_bias,
        A,
        D,
        chunk_size,
        initial_states=None,
        dt_limit=(0.0, math.inf),
        return_final_states=False,
        activation="silu",
        rmsnorm_weight=None,
        rmsnorm_eps=1e-6,
        outproj_weight=None,
        outproj_bias=None,
        headdim=None,
        ngroups=1,
        norm_before_gate=True,
        **kwargs,
    ):
        seq_idx = _of_keywords("mamba_split_conv1d_scan_combined", kwargs, *zxbcdt.shape[:2])
        return _split(
            *(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states, seq_idx, dt_limit),
            return_final_states,
            activation,
            rmsnorm_weight,
            rmsnorm_eps,
            outproj_weight,
            outproj_bias,
            headdim,
            ngroups,
            norm_before_gate,
        )


class MambaRMSNormGated(_package.Layer):
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states, gate=None):
        gate = None if gate is None else gate.to(hidden_states.dtype)
        return _gated_norm(hidden_states, self.weight, None, gate, self.variance_epsilon, norm_before_gate=False)
