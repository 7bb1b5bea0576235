"""Names of Liger 0.8.5 that can be imported, and whose use is an error: there is no such op here yet."""

_CLASSES = """LigerFusedCETVDLoss LigerFusedLinearKLDivLoss LigerMHC LigerModulatedRMSNorm LigerMultiTokenAttention LigerPolyNorm
LigerVocabParallelCrossEntropy LigerFusedNeighborhoodAttention LigerFusedNeighborhoodAttentionLayer
LigerFusedNeighborhoodAttentionConfig LigerExpertParallelFusedMoe LigerEmbedding"""
_FUNCTIONS = """liger_attn_res liger_fused_linear_kl_div liger_fused_linear_scaled_cross_entropy_tp
liger_fused_neighborhood_attention liger_mhc_apply liger_mhc_coeffs liger_mhc_forward liger_mhc_post_res liger_mhc_pre
liger_modulated_rms_norm liger_multi_token_attention liger_poly_norm"""
OPS = """AttnRes Embedding FusedCETVD FusedLinearKLDiv FusedLinearScaledCrossEntropy FusedLinearScaledCrossEntropyTP
FusedNeighborhoodAttention MHCCoeffs MHCPostRes MHCPre ModulatedRMSNorm MultiTokenAttention PolyNorm VocabParallelCE"""


def refusing(name: str):
    """A function of that name: NotImplementedError, whatever it is given."""

    def refuse(*args, **kwargs):
        raise NotImplementedError(
            f"expected a name of Liger's that hotswap has an op for; got {name}, which has none yet; use Liger's own, or torch's functions"
        )

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


for _name in _CLASSES.split():
    globals()[_name] = type(_name, (), {"__init__": refusing(_name), "__doc__": refusing.__doc__})
for _name in _FUNCTIONS.split():
    globals()[_name] = refusing(_name)

__all__ = [*_CLASSES.split(), *_FUNCTIONS.split()]
