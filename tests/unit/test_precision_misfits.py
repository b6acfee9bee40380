"""The dry pass tells what a format lost although the result looks well; norms of the model's own are kept from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mpt.config.compose import compose
from mpt.plan.facts import probe
from mpt.precision.assignment import assign
from mpt.precision.audit import Auditor
from mpt.precision.capability import resolve
from mpt.precision.emulate import Emulation
from mpt.precision.policy import install
from mpt.train.known import known
from mpt.types import Audit

X = torch.linspace(-1, 1, 32).reshape(2, 16)


class Does(nn.Module):
    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lin, self.f = nn.Linear(16, 16), f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.lin(x))


class SquaresNorm(nn.Module):
    """As it is written in many repositories: squares in the format of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        d = x - x.mean(-1, keepdim=True)
        return self.weight * (d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-12)) + self.bias


def audited(model: nn.Module, x: Tensor, *words: str) -> tuple[Audit, Tensor]:
    cfg = compose(list(words)).precision
    mechanism = resolve(cfg, probe("cpu"))
    rows = assign(model, cfg, mechanism)
    policy = install(model, cfg, mechanism)
    auditor = Auditor(model, rows, cfg, mechanism)
    with auditor:
        with policy.forward():
            out = model(x)
        if out.requires_grad:
            with policy.backward():
                out.float().sum().backward()
    return auditor.result(), out


@pytest.mark.parametrize(
    ("precision", "f", "told"),
    [
        ("fp16", lambda h: (h * 600) * (h * 600) * 0 + h, "`mul` overflows float16 in "),
        ("fp16", lambda h: h / (h.abs() + 1e-8), "1e-08 is 0 in float16, whose smallest number is 6e-08"),
        ("bf16", lambda h: h + torch.arange(600, dtype=h.dtype)[:16], "600 whole numbers are "),
        ("bf16", lambda h: h + torch.arange(300, 316).to(h.dtype), "301 becomes 300 in bfloat16"),
        ("fp16", lambda h: h + torch.full((16,), 4001).to(h.dtype), "4,001 becomes 4,000 in float16"),
        ("bf16", lambda h: h + (torch.arange(16.0) + 300).to(h.dtype), "16 whole numbers are "),
        ("bf16", lambda h: h + (torch.arange(16, dtype=h.dtype) + 512), "16 whole numbers are "),
        (
            "bf16",
            lambda h: h + torch.full((), 256, dtype=h.dtype).add_(1),
            "adding 1 changes nothing at 256 in bfloat16",
        ),
    ],
    ids=["overflow", "eps", "arange", "cast", "one", "float_cast", "shift", "count"],
)
def test_what_a_format_lost_is_told_with_its_line(precision: str, f: Callable[[Tensor], Tensor], told: str) -> None:
    audit, out = audited(Does(f), X, f"precision={precision}")
    assert any(told in note and "test_precision_misfits.py:" in note for note in audit.misfits), audit.misfits
    assert set(audit.misfits) <= set(audit.notes)
    assert audit.verdict == "match"
    assert told.startswith("`mul`") or out.isfinite().all()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize(
    "f",
    [
        lambda h: (h + -1e9 * (torch.arange(16) < 3)).softmax(-1),
        lambda h: h.masked_fill(torch.arange(16) < 3, float("-inf")).softmax(-1),
        lambda h: h / (h.float().var(-1, keepdim=True) + 1e-6).sqrt(),
        lambda h: h + torch.arange(200, dtype=h.dtype)[:16],
        lambda h: h + 1,
    ],
    ids=["mask", "inf_mask", "eps", "arange", "one"],
)
def test_what_fits_is_not_told(precision: str, f: Callable[[Tensor], Tensor]) -> None:
    audit, _ = audited(Does(f), X.abs(), f"precision={precision}")
    assert audit.misfits == ()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp16_true"])
@pytest.mark.parametrize("norm", [SquaresNorm, lambda: nn.LocalResponseNorm(2, k=1e-4)], ids=["own", "lrn"])
def test_r9_norms_that_are_no_kernel_of_torchs_compute_in_float32(
    norm: Callable[[], nn.Module], precision: str
) -> None:
    x = X.unsqueeze(-1) * 900
    x = x if isinstance(norm(), nn.LocalResponseNorm) else x.squeeze(-1)
    audit, got = audited(nn.Sequential(nn.Identity(), norm()), x, f"precision={precision}")
    assert torch.equal(got, norm()(x))
    assert audit.misfits == ()
    assert next(row for row in audit.rows if row.name == "1").planned == "float32"


def test_a_rule_or_keep_gives_such_norms_the_compute_format_again() -> None:
    words = ("precision=fp16", "precision.keep=[softmax,loss,reductions]")
    audit, _ = audited(nn.Sequential(nn.Linear(16, 16), SquaresNorm()), X * 900, *words)
    assert any("`mul` overflows float16" in note for note in audit.misfits)
    rule = "precision.layers=[{match: '1', format: float16}]"
    audit, _ = audited(nn.Sequential(nn.Linear(16, 16), SquaresNorm()), X * 900, "precision=fp16", rule)
    assert any("module `1`" in note and "format: float32" in note for note in audit.misfits)


def test_sparse_tensors_pass_the_dry_pass() -> None:
    model = nn.Sequential(nn.EmbeddingBag(32, 16, mode="sum", sparse=True), nn.Linear(16, 4))
    audit, _ = audited(model, torch.arange(8).reshape(2, 4), "precision=bf16")
    assert audit.verdict == "match"


def raised(make: Callable[[], object]) -> str:
    with pytest.raises((RuntimeError, NotImplementedError)) as error:
        make()
    return str(error.value)


def _in_place() -> None:
    y = torch.ones(2, requires_grad=True).exp()
    y.add_(1)
    y.sum().backward()


def _twice() -> None:
    y = torch.ones(2, requires_grad=True).exp().sum()
    y.backward()
    y.backward()


HALF, BRAIN, FULL = (torch.ones(2, 2, dtype=d) for d in (torch.float16, torch.bfloat16, torch.float32))


@pytest.mark.parametrize(
    ("make", "helps"),
    [
        (lambda: HALF.masked_fill(HALF > 0, -1e9), "torch.finfo"),
        (lambda: HALF @ FULL, ".to(x.dtype)"),
        (lambda: torch.addmm(FULL, BRAIN, FULL), ".to(x.dtype)"),
        (lambda: FULL.scatter_add_(0, torch.zeros(2, 2, dtype=torch.long), HALF), ".to(x.dtype)"),
        (lambda: FULL.index_put_((torch.zeros(2, dtype=torch.long),), HALF), ".to(x.dtype)"),
        (lambda: nn.functional.conv1d(BRAIN[None], FULL[None]), ".to(x.dtype)"),
        (lambda: torch.linalg.qr(HALF), "precision.layers"),
        (lambda: torch.linalg.svd(BRAIN), "precision.layers"),
        (lambda: torch.fft.fft(BRAIN), "precision.layers"),
        (_in_place, "inplace=False"),
        (_twice, ".detach()"),
    ],
)
def test_what_torch_says_of_such_faults_gets_a_next_move(make: Callable[[], object], helps: str) -> None:
    assert helps in known(raised(make))


def test_an_emulated_product_refuses_operands_that_the_hardware_would_refuse() -> None:
    with Emulation("float16"):
        said = raised(lambda: HALF @ FULL)
        assert (HALF @ HALF).dtype == torch.float16
    assert "torch.float16 and torch.float32" in said
    assert ".to(x.dtype)" in known(said)


def test_other_faults_get_none() -> None:
    assert known("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)") == ""
