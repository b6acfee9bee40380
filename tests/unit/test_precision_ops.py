"""The op policy on this CPU: what each kind of op computes in while autocast is on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mpt.errors import PrecisionError
from mpt.precision.kernels import _differences, install_kernels, remove_kernels
from mpt.precision.ops import FOLLOW, GEMM, KINDS, PROMOTE, REFUSED, check_keep

fn = torch.ops.aten
HALF = torch.float16


def values(*shape: int) -> Tensor:
    """Half numbers between 1/2 and 1, inside every op's domain."""
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(*shape, generator=generator) / 2 + 0.5).to(HALF)


def square() -> Tensor:
    """A well-conditioned symmetric positive matrix."""
    return (values(4, 4) @ values(4, 4).t() + 4 * torch.eye(4, dtype=HALF)).to(HALF)


@pytest.fixture
def policy() -> Iterator[None]:
    """All kinds kept; torch's own lists again afterwards."""
    install_kernels("cpu", KINDS)
    yield
    remove_kernels("cpu")


LABELS = torch.tensor([0, 1])
SIGNS = torch.tensor([1.0, -1.0]).to(HALF)

FLOAT32: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), (values(2, 4),)),
    "native_layer_norm": (lambda x: fn.native_layer_norm(x, [4], None, None, 1e-5)[0], (values(2, 4),)),
    "rms_norm": (lambda x: F.rms_norm(x, (4,)), (values(2, 4),)),
    "group_norm": (lambda x: F.group_norm(x, 2), (values(2, 4, 3),)),
    "softmax.int": (lambda x: x.softmax(-1), (values(2, 4),)),
    "log_softmax.int": (lambda x: x.log_softmax(-1), (values(2, 4),)),
    "logsumexp": (lambda x: x.logsumexp(-1), (values(2, 4),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (values(2, 4),)),
    **{
        name: (getattr(torch, name), (values(3),))
        for name in ("exp", "exp2", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "acos", "asin")
    },
    **{name: (getattr(torch, name), (values(3),)) for name in ("cosh", "sinh", "tan", "erfinv")},
    "softplus": (F.softplus, (values(3),)),
    "logaddexp": (torch.logaddexp, (values(3), values(3))),
    "logaddexp2": (torch.logaddexp2, (values(3), values(3))),
    "pow.Tensor_Scalar": (lambda x: x**2, (values(3),)),
    "pow.Tensor_Tensor": (lambda x: x**x, (values(3),)),
    "pow.Scalar": (lambda x: 2**x, (values(3),)),
    "nll_loss": (lambda x: F.nll_loss(x, LABELS), (values(2, 4),)),
    "nll_loss2d": (lambda x: fn.nll_loss2d(x, torch.zeros(2, 3, 3, dtype=torch.long)), (values(2, 4, 3, 3),)),
    "mse_loss": (F.mse_loss, (values(3), values(3) / 2)),
    "l1_loss": (F.l1_loss, (values(3), values(3) / 2)),
    "smooth_l1_loss": (F.smooth_l1_loss, (values(3), values(3) / 2)),
    "huber_loss": (F.huber_loss, (values(3), values(3) / 2)),
    "kl_div": (lambda x, y: F.kl_div(x, y, reduction="sum"), (values(3), values(3) / 2)),
    "poisson_nll_loss": (F.poisson_nll_loss, (values(3), values(3))),
    "hinge_embedding_loss": (F.hinge_embedding_loss, (values(2), SIGNS)),
    "soft_margin_loss": (F.soft_margin_loss, (values(2), SIGNS)),
    "margin_ranking_loss": (F.margin_ranking_loss, (values(2), values(2), SIGNS)),
    "cosine_embedding_loss": (F.cosine_embedding_loss, (values(2, 3), values(2, 3) / 2, SIGNS)),
    "multilabel_margin_loss": (lambda x: F.multilabel_margin_loss(x, torch.tensor([1, -1, 0])), (values(3),)),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, LABELS), (values(2, 4),)),
    "triplet_margin_loss": (F.triplet_margin_loss, (values(2, 3), values(2, 3) / 2, values(2, 3) / 3)),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, (values(3), values(3))),
    "linalg_det": (torch.linalg.det, (square(),)),
    "linalg_slogdet": (lambda x: torch.linalg.slogdet(x)[1], (square(),)),
    "linalg_inv": (torch.linalg.inv, (square(),)),
    "linalg_pinv": (torch.linalg.pinv, (square(),)),
    "linalg_cholesky": (torch.linalg.cholesky, (square(),)),
    "linalg_qr": (lambda x: torch.linalg.qr(x)[1], (square(),)),
    "linalg_svd": (lambda x: torch.linalg.svd(x)[1], (square(),)),
    "linalg_svdvals": (torch.linalg.svdvals, (square(),)),
    "linalg_eigh": (lambda x: torch.linalg.eigh(x)[0], (square(),)),
    "linalg_eigvalsh": (torch.linalg.eigvalsh, (square(),)),
    "linalg_solve": (torch.linalg.solve, (square(), values(4))),
    "linalg_solve_triangular": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), (square(), values(4, 1))),
    "linalg_lstsq": (lambda a, b: torch.linalg.lstsq(a, b)[0], (square(), values(4, 1))),
    "linalg_lu": (lambda x: torch.linalg.lu(x)[2], (square(),)),
    "linalg_matrix_exp": (torch.linalg.matrix_exp, (square() / 4,)),
    "linalg_matrix_power": (lambda x: torch.linalg.matrix_power(x, 3), (square(),)),
    "linalg_cond": (torch.linalg.cond, (square(),)),
    "linalg_norm": (torch.linalg.norm, (square(),)),
    "inverse": (torch.inverse, (square(),)),
    "det": (torch.det, (square(),)),
    "logdet": (torch.logdet, (square(),)),
    "matrix_exp": (torch.matrix_exp, (square() / 4,)),
    "fft_fft": (torch.fft.fft, (values(6),)),
    "fft_rfft": (torch.fft.rfft, (values(6),)),
    "fft_rfft2": (torch.fft.rfft2, (values(6, 6),)),
    "fft_fftn": (torch.fft.fftn, (values(6, 6),)),
    "fft_ihfft": (torch.fft.ihfft, (values(6),)),
    "fft_ihfft2": (torch.fft.ihfft2, (values(6, 6),)),
    "stft": (lambda x: torch.stft(x, 8, window=torch.ones(8), return_complex=True), (values(32),)),
    "view_as_complex": (torch.view_as_complex, (values(3, 2),)),
    "complex": (torch.complex, (values(3), values(3))),
    "polar": (torch.polar, (values(3), values(3))),
    "sum": (torch.sum, (values(9),)),
    "sum.dim_IntList": (lambda x: x.sum(-1), (values(2, 9),)),
    "nansum": (torch.nansum, (values(9),)),
    "prod": (torch.prod, (values(9),)),
    "prod.dim_int": (lambda x: x.prod(-1), (values(2, 9),)),
    "cumsum": (lambda x: x.cumsum(-1), (values(9),)),
    "cumprod": (lambda x: x.cumprod(-1), (values(9),)),
    "norm.Scalar": (lambda x: x.norm(), (values(9),)),
    "linalg_vector_norm": (torch.linalg.vector_norm, (values(9),)),
    "linalg_matrix_norm": (torch.linalg.matrix_norm, (square(),)),
    "dist": (torch.dist, (values(9), values(9) / 2)),
    "pdist": (F.pdist, (values(3, 4),)),
    "cdist": (torch.cdist, (values(3, 4), values(2, 4))),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 0.5), (values(3, 4),)),
    "cosine_similarity": (F.cosine_similarity, (values(3, 4), values(3, 4) / 2)),
    "var.correction": (lambda x: x.var(-1, correction=1), (values(2, 9),)),
    "var": (torch.var, (values(9),)),
    "std.correction": (lambda x: x.std(-1, correction=1), (values(2, 9),)),
    "var_mean.correction": (lambda x: torch.var_mean(x, -1, correction=1)[0], (values(2, 9),)),
    "quantile.scalar": (lambda x: torch.quantile(x, 0.3), (values(9),)),
    "trace": (torch.trace, (square(),)),
    "upsample_nearest2d": (lambda x: F.interpolate(x, scale_factor=2), (values(1, 2, 3, 3),)),
    "upsample_bilinear2d": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (values(1, 2, 3, 3),)),
    "upsample_bicubic2d": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (values(1, 2, 3, 3),)),
}


@pytest.mark.parametrize("name", list(FLOAT32))
def test_an_op_of_a_kept_kind_computes_in_float32(name: str, policy: None) -> None:
    run, operands = FLOAT32[name]
    with torch.autocast("cpu", dtype=HALF):
        got = run(*operands)
    want = run(*(t.float() for t in operands))
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_every_name_tried_is_in_the_lists() -> None:
    assert set(FLOAT32) <= {name for names in KINDS.values() for name in names}


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_every_kept_op_is_cast_on_every_device_by_torch_or_by_us(device: str) -> None:
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "mps": "AutocastMPS"}[device]
    ours = {op.name() for op, _ in _differences(device, frozenset(KINDS))}
    for name in (name for names in (*KINDS.values(), GEMM, REFUSED) for name in names):
        base, _, overload = name.partition(".")
        op = getattr(getattr(fn, base), overload or "default")
        assert op.name() in ours or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


@pytest.mark.parametrize(
    ("kind", "run"),
    [
        ("softmax", lambda x: x.softmax(-1)),
        ("norm", lambda x: F.layer_norm(x, (4,))),
        ("reductions", lambda x: x.sum(-1)),
        ("reductions", lambda x: x.prod(-1)),
        ("exp_log_pow", torch.exp),
        ("loss", lambda x: F.mse_loss(x, x / 2)),
        ("resize", lambda x: F.interpolate(x[None], scale_factor=2)),
    ],
)
def test_a_kind_left_out_follows_its_input(kind: str, run: Callable[[Tensor], Tensor]) -> None:
    install_kernels("cpu", [k for k in KINDS if k != kind])
    x = values(2, 4)
    with torch.autocast("cpu", dtype=HALF):
        assert run(x).dtype == HALF
    remove_kernels("cpu")


GEMMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (values(2, 3), values(3, 2))),
    "mv": (torch.mv, (values(2, 3), values(3))),
    "addmv": (torch.addmv, (values(2), values(2, 3), values(3))),
    "addr": (torch.addr, (values(2, 3), values(2), values(3))),
    "bmm": (torch.bmm, (values(1, 2, 3), values(1, 3, 2))),
    "matmul": (torch.matmul, (values(2, 3), values(3))),
    "linear": (F.linear, (values(2, 3), values(2, 3))),
    "chain_matmul": (lambda a, b: torch.linalg.multi_dot([a, b, a]), (values(2, 3), values(3, 2))),
    "conv2d": (F.conv2d, (values(1, 2, 4, 4), values(2, 2, 3, 3))),
    "conv_transpose2d.input": (F.conv_transpose2d, (values(1, 2, 4, 4), values(2, 2, 3, 3))),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, (values(1, 1, 4, 8),) * 3),
}


@pytest.mark.parametrize("name", list(GEMMS))
def test_products_take_the_compute_format(name: str, policy: None) -> None:
    run, operands = GEMMS[name]
    with torch.autocast("cpu", dtype=HALF):
        assert run(*(t.float() for t in operands)).dtype == HALF


PROMOTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "atan2": torch.atan2,
    "dot": torch.dot,
    "tensordot": lambda x, y: torch.tensordot(x, y, 1),
    "index_put": lambda x, y: x.index_put((torch.tensor([0]),), y[:1]),
    "scatter_add": lambda x, y: x.scatter_add(0, torch.tensor([0]), y),
    "index_add": lambda x, y: x.index_add(0, torch.tensor([0]), y[:1]),
    "cross": lambda x, y: torch.cross(x, y, dim=0),
}


@pytest.mark.parametrize("name", [n for n in PROMOTED if n in PROMOTE])
def test_ops_of_two_operands_take_the_wider_format(name: str, policy: None) -> None:
    run, x = PROMOTED[name], values(3)
    with torch.autocast("cpu", dtype=HALF):
        assert run(x, x).dtype == HALF
        assert run(x.float(), x).dtype == torch.float32
        assert run(x, x.float()).dtype == torch.float32


FOLLOWING: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "max_pool3d": lambda x: F.max_pool3d(x, 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 2),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x[0], 2, return_indices=True), 2),
    "max_unpool3d": lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x[0], 2, output_size=2),
    "fractional_max_pool3d": lambda x: F.fractional_max_pool3d(x, 2, output_size=2),
    "reflection_pad1d": lambda x: F.pad(x[0, 0], (1, 1), mode="reflect"),
    "reflection_pad2d": lambda x: F.pad(x[0], (1, 1, 1, 1), mode="reflect"),
    "replication_pad1d": lambda x: F.pad(x[0, 0], (1, 1), mode="replicate"),
    "replication_pad2d": lambda x: F.pad(x[0], (1, 1, 1, 1), mode="replicate"),
    "replication_pad3d": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FOLLOW)
def test_ops_that_cpu_autocast_would_widen_follow_their_input(name: str, dtype: torch.dtype, policy: None) -> None:
    with torch.autocast("cpu", dtype=dtype):
        assert FOLLOWING[name](values(1, 2, 4, 4, 4).to(dtype)).dtype == dtype


def test_binary_cross_entropy_is_refused_as_cuda_refuses_it(policy: None) -> None:
    p = torch.sigmoid(values(3))
    with torch.autocast("cpu", dtype=HALF), pytest.raises(PrecisionError, match="BCEWithLogitsLoss"):
        F.binary_cross_entropy(p, p)
    assert F.binary_cross_entropy(p.float(), p.float()).dtype == torch.float32


def test_gradients_come_back_through_the_casts(policy: None) -> None:
    x = values(2, 4).requires_grad_()
    with torch.autocast("cpu", dtype=HALF):
        y = F.layer_norm(x, (4,)).softmax(-1).square().sum()
    y.backward()
    wide = x.detach().float().requires_grad_()
    F.layer_norm(wide, (4,)).softmax(-1).square().sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    assert torch.equal(x.grad, wide.grad.to(HALF))


def test_kernels_are_installed_once_and_taken_back_whole() -> None:
    x = values(2, 4)
    install_kernels("cpu", KINDS)
    install_kernels("cpu", KINDS)
    remove_kernels("cpu")
    remove_kernels("cpu")
    with torch.autocast("cpu", dtype=HALF):
        assert x.softmax(-1).dtype == HALF
        assert F.binary_cross_entropy(x, x).dtype == torch.float32


def test_nothing_changes_while_autocast_is_off(policy: None) -> None:
    x = values(2, 4)
    assert x.softmax(-1).dtype == HALF
    assert torch.exp(x).dtype == HALF


def test_an_unknown_kind_names_its_neighbour() -> None:
    with pytest.raises(PrecisionError, match="did you mean `softmax`"):
        check_keep(["sofmax"])
