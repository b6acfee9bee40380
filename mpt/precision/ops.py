"""The op policy, the same on every device: which ops are cast to what while autocast is on. Names only, no torch.

An op is `name` or `name.overload` of torch's `aten` library. Start: CUDA autocast's published lists
(https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior); linear algebra, FFT and variances are ours.
"""

from __future__ import annotations

from mpt.errors import PrecisionError, Problem
from mpt.registry import did_you_mean

_FFT = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")

KINDS: dict[str, tuple[str, ...]] = {
    "norm": ("layer_norm", "native_layer_norm", "rms_norm", "group_norm"),
    "softmax": ("softmax.int", "log_softmax.int", "logsumexp", "logcumsumexp"),
    "exp_log_pow": (
        *("exp", "exp2", "expm1", "log", "log10", "log2", "log1p", "logaddexp", "logaddexp2"),
        *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "reciprocal", "rsqrt", "softplus"),
        *("acos", "asin", "cosh", "sinh", "tan", "erfinv"),
    ),
    "loss": (
        *("nll_loss", "nll_loss2d", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
        *("ctc_loss.IntList", "ctc_loss.Tensor", "poisson_nll_loss", "cosine_embedding_loss", "hinge_embedding_loss"),
        *("soft_margin_loss", "margin_ranking_loss", "multilabel_margin_loss", "triplet_margin_loss"),
        *("multi_margin_loss", "binary_cross_entropy_with_logits"),
    ),
    "linalg": (
        *("linalg_det", "linalg_slogdet", "linalg_inv", "linalg_inv_ex", "linalg_cholesky", "linalg_cholesky_ex"),
        *("linalg_pinv", "linalg_pinv.atol_rtol_float", "linalg_pinv.atol_rtol_tensor", "linalg_pinv.rcond_tensor"),
        *("linalg_qr", "linalg_svd", "linalg_svdvals", "linalg_eig", "linalg_eigh", "linalg_eigvals"),
        *("linalg_eigvalsh", "linalg_solve", "linalg_solve_ex", "linalg_solve_triangular", "linalg_lstsq"),
        *("linalg_lu", "linalg_lu_factor", "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_ldl_factor"),
        *("linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_matrix_exp", "linalg_matrix_power", "linalg_cond"),
        *("linalg_cond.p_str", "linalg_matrix_rank", "linalg_matrix_rank.atol_rtol_tensor"),
        *("linalg_matrix_rank.atol_rtol_float", "linalg_matrix_rank.tol_tensor", "linalg_householder_product"),
        *("linalg_norm", "linalg_norm.ord_str", "linalg_tensorinv", "linalg_tensorsolve", "triangular_solve"),
        *("cholesky_inverse", "cholesky_solve", "inverse", "det", "logdet", "slogdet", "pinverse", "svd"),
        *("matrix_exp", "geqrf", "ormqr", "orgqr", "lu_solve"),
    ),
    "fft": (
        *(f"fft_{name}{dims}" for name in _FFT for dims in ("", "2", "n")),
        *("stft", "stft.center", "istft", "view_as_complex", "complex", "polar"),
    ),
    "reductions": (
        *("sum", "sum.dim_IntList", "nansum", "prod", "prod.dim_int", "cumsum", "cumprod", "norm.Scalar"),
        *("norm.ScalarOpt_dim", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
        *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "dist", "pdist", "cdist", "renorm"),
        *("cosine_similarity", "var", "var.dim", "var.correction", "std", "std.dim", "std.correction"),
        *("var_mean.correction", "std_mean.correction", "quantile", "quantile.scalar", "nanquantile"),
        *("nanquantile.scalar", "trace"),
    ),
    "resize": (
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
        *("upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_nearest_exact1d"),
        *("_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa"),
        "_upsample_bicubic2d_aa",
    ),
}
"""Kinds that `precision.keep` names: computed in float32. A kind left out follows its input, on every device."""

GEMM: tuple[str, ...] = (
    *("addmm", "addmv", "addr", "matmul", "mm", "mv", "bmm", "addbmm", "baddbmm", "linear", "linalg_vecdot"),
    *("chain_matmul", "linalg_multi_dot", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_tbc"),
    *("conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "scaled_dot_product_attention"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
"""Computed in the policy's compute format."""

PROMOTE: tuple[str, ...] = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    *("scatter_add", "index_add", "index_copy", "lerp.Tensor", "lerp.Scalar"),
)
"""Computed in the widest format among their operands."""

FOLLOW: tuple[str, ...] = (
    *("avg_pool3d", "max_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d", "max_unpool2d", "max_unpool3d"),
    *("fractional_max_pool2d", "fractional_max_pool3d", "reflection_pad1d", "reflection_pad2d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
)
"""Keep their input's format, where CPU autocast would hand out float32."""

REFUSED: dict[str, str] = {
    "binary_cross_entropy": "give logits to binary_cross_entropy_with_logits (BCEWithLogitsLoss) and drop the sigmoid",
}
"""Unsafe in half precision (a half sigmoid rounds to exactly 0 and 1); the value says what to use."""


def check_keep(keep: list[str]) -> None:
    """Raises: PrecisionError if `keep` names a kind that there is not."""
    unknown = [Problem("precision.keep", f"got `{k}`", did_you_mean(k, list(KINDS))) for k in keep if k not in KINDS]
    if unknown:
        raise PrecisionError(*unknown)
