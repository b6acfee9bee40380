"""The audit: it sees what modules multiply, forward and backward, and tells when that is not what was planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mpt.precision import Auditor, assign
from mpt.types import Audit
from tests.unit._precision_kit import (
    POLICIES,
    Cnn,
    Gpt,
    built,
    images,
    pass_through,
    policy_config,
    switched,
    tokens,
)


class Checkpointed(Gpt):
    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False)


class Reentrant(Gpt):
    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)))


class Undecorated(torch.autograd.Function):
    """Forward in bfloat16, backward in float16: what an author forgot to decorate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x.bfloat16() @ w.bfloat16()

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        up = up.half()
        return (up @ w.half().t()).to(x.dtype), (x.half().flatten(0, 1).t() @ up.flatten(0, 1)).to(w.dtype)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.weight = nn.Parameter(torch.randn(8, 20))

    def forward(self, x: Tensor) -> Tensor:
        return Undecorated.apply(self.embed(x), self.weight)


def audited(make: Callable[[], nn.Module], name: str, batch: tuple[Tensor, Tensor], **changes: Any) -> Audit:
    cfg = policy_config(name, **changes)
    model, policy, mechanism = built(make, cfg)
    rows = assign(model, cfg, mechanism)
    with switched(cfg), Auditor(model, rows, cfg, mechanism) as auditor:
        pass_through(model, policy, batch)
    return auditor.result()


NETS = [(Cnn, images), (Gpt, tokens), (Checkpointed, tokens), (Recurrent, tokens), (Encoder, tokens)]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("make", "batch"), NETS, ids=lambda v: v.__name__)
def test_every_policy_does_what_it_planned(make: type[nn.Module], batch: Callable[[], Any], name: str) -> None:
    audit = audited(make, name, batch())
    assert audit.verdict == "match", [r for r in audit.rows if not r.matches]
    assert audit.loss_format == "float32"
    compute = policy_config(name).compute
    multiplied = [row for row in audit.rows if row.planned == compute and row.forward == (compute,)]
    assert len(multiplied) >= 2
    assert all(row.backward == (compute,) for row in multiplied)


def test_emulated_products_are_told_as_such() -> None:
    notes = {row.name: row.note for row in audited(Cnn, "fp16", images()).rows}
    assert "emulated" in notes["conv"]
    assert notes["bn"] == ""
    assert {row.note for row in audited(Cnn, "bf16", images()).rows} == {""}


def test_norms_are_seen_in_float32_and_batch_norm_in_its_inputs_format() -> None:
    rows = {row.name: row for row in audited(Cnn, "bf16", images()).rows}
    assert rows["gn"].forward == rows["gn"].backward == ("float32",)
    assert rows["bn"].forward == ("bfloat16",)
    assert rows["bn"].planned == "follows"


class Algebra(nn.Module):
    """Determinants, inverses and singular values between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def matrices(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1)[:, :64]).view(-1, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        m = self.matrices(x)
        square = m @ m.mT + torch.eye(4)
        numbers = torch.linalg.det(square) + torch.linalg.norm(m, ord=2, dim=(1, 2)) + torch.logdet(square)
        for solved in (torch.linalg.cholesky(square), square.inverse(), torch.linalg.pinv(m), torch.matrix_exp(m)):
            numbers = numbers + torch.linalg.eigvalsh(solved @ m).sum(1)
        return self.head(m.flatten(1)) + numbers[:, None]


class Normalised(nn.Module):
    """Spectral norms of both makes, whose power iteration ends in a dot product."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 16))
        self.head = torch.nn.utils.spectral_norm(nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.inner(x.flatten(1)[:, :64])))


@pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning")
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16", "fp16_master"])
@pytest.mark.parametrize("make", [Algebra, Normalised])
def test_products_inside_ops_that_are_kept_in_float32_are_no_departure(make: type[nn.Module], name: str) -> None:
    audit = audited(make, name, images())
    assert audit.verdict == "match", [r for r in audit.rows if not r.matches]
    compute = policy_config(name).compute
    head = next(row for row in audit.rows if row.name == "head")
    assert head.forward == head.backward == (compute,)


class HandCast(Algebra):
    """The author multiplies in float32, out of autocast, beside linear algebra."""

    def matrices(self, x: Tensor) -> Tensor:
        m = super().matrices(x)
        with torch.autocast("cpu", enabled=False):
            return m.float() @ m.float().mT


def test_products_beside_ops_that_are_kept_in_float32_are_still_told() -> None:
    wrong = [row for row in audited(HandCast, "bf16", images()).rows if not row.matches]
    assert [(row.name, "float32" in row.forward, "float32" in row.backward) for row in wrong] == [("", True, True)]


class Sabotaged(Cnn):
    """The author casts by hand, out of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        with torch.autocast("cpu", enabled=False):
            x = F.conv2d(x.float(), self.conv2.weight.float(), self.conv2.bias.float())
        return self.head(torch.relu(self.gn(x)).flatten(1))


class Hidden(nn.Linear):
    """A layer that multiplies in float32 on its own account."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.linear(x.float(), self.weight.float(), self.bias.float())


class WithHidden(Cnn):
    def __init__(self) -> None:
        super().__init__()
        self.head = Hidden(8 * 16, 10)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp16_master"])
def test_a_layer_that_casts_by_hand_is_told(name: str) -> None:
    audit = audited(WithHidden, name, images())
    assert audit.verdict == "differs"
    (wrong,) = [row for row in audit.rows if not row.matches]
    assert wrong.name == "head"
    assert wrong.forward == wrong.backward == ("float32",)
    assert "forward multiplied float32" in wrong.note
    assert "backward multiplied float32" in wrong.note


def test_products_outside_the_planned_modules_are_seen_too() -> None:
    audit = audited(Sabotaged, "bf16", images())
    assert audit.verdict == "differs"
    (wrong,) = [row for row in audit.rows if not row.matches]
    assert wrong.name == ""


def test_a_custom_function_whose_backward_changes_format_is_told() -> None:
    audit = audited(Custom, "bf16", tokens())
    (wrong,) = [row for row in audit.rows if not row.matches]
    assert (wrong.name, wrong.forward, wrong.backward) == ("", ("bfloat16",), ("float16",))
    assert wrong.note == "backward multiplied float16, planned bfloat16"


def test_a_policy_that_was_never_entered_is_told() -> None:
    cfg = policy_config("bf16")
    model, _, mechanism = built(Cnn, cfg)
    plain = built(Cnn, policy_config("fp32"))[1]
    with Auditor(model, assign(model, cfg, mechanism), cfg, mechanism) as auditor:
        pass_through(model, plain, images())
    assert auditor.result().verdict == "differs"


def test_a_norm_that_was_turned_half_is_told() -> None:
    cfg = policy_config("bf16")
    model, policy, mechanism = built(Gpt, cfg)
    rows = assign(model, cfg, mechanism)
    model.blocks[0].norm.bfloat16()
    with Auditor(model, rows, cfg, mechanism) as auditor:
        pass_through(model, policy, tokens())
    (wrong,) = [row for row in auditor.result().rows if not row.matches]
    assert wrong.name == "blocks.0.norm"
    assert "parameters are bfloat16, planned float32" in wrong.note


def test_a_loss_in_half_is_told() -> None:
    cfg = policy_config("bf16")
    model, policy, mechanism = built(lambda: nn.Linear(4, 4), cfg)
    with Auditor(model, assign(model, cfg, mechanism), cfg, mechanism) as auditor:
        with policy.forward():
            out = model(torch.randn(2, 4))
        loss = out.sum()
        loss.backward()
    audit = auditor.result()
    assert (audit.verdict, audit.loss_format) == ("differs", "bfloat16")


def test_a_module_that_took_no_part_is_noted_and_no_fault() -> None:
    class Unused(Cnn):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(2, 2)

    audit = audited(Unused, "bf16", images())
    rows = {row.name: row for row in audit.rows}
    assert audit.verdict == "match"
    assert rows["spare"].note == "took no part in this pass"


@pytest.mark.parametrize("name", POLICIES)
def test_watching_changes_no_number_and_leaves_no_hook(name: str) -> None:
    def run(watch: bool) -> tuple[Tensor, list[Tensor]]:
        cfg = policy_config(name)
        model, policy, mechanism = built(Checkpointed, cfg)
        if watch:
            with Auditor(model, assign(model, cfg, mechanism), cfg, mechanism):
                loss = pass_through(model, policy, tokens())
        else:
            loss = pass_through(model, policy, tokens())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        return loss, [p.grad for p in model.parameters()]

    (loss, grads), (bare, bare_grads) = run(True), run(False)
    assert torch.equal(loss, bare)
    assert all(torch.equal(a, b) for a, b in zip(grads, bare_grads, strict=True))


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp16_true", "tf32"])
@pytest.mark.parametrize("make", [Checkpointed, Reentrant])
def test_recomputing_gives_the_gradients_of_not_recomputing(make: type[nn.Module], name: str) -> None:
    grads = []
    for net in (Gpt, make):
        model, policy, _ = built(net, policy_config(name))
        pass_through(model, policy, tokens())
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
