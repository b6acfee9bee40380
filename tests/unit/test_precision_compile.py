"""Compiled models: the same numbers as eager ones, with modules kept in float32 and under emulation too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from mpt.precision import Auditor, assign
from tests.unit._precision_kit import Cnn, Gpt, built, images, pass_through, policy_config, rules, switched, tokens


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def compiled(model: nn.Module) -> tuple[Callable[..., torch.Tensor], list[int]]:
    """The model compiled up to the graph of autograd, without code generation, and the sizes of the graphs made."""
    sizes: list[int] = []

    def backend(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., object]:
        sizes.append(len(graph.graph.nodes))
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    return torch.compile(model, backend=backend), sizes


@pytest.mark.parametrize("match", [None, "head"])
@pytest.mark.parametrize(("make", "batch"), [(Cnn, images), (Gpt, tokens)])
def test_a_compiled_model_has_the_loss_and_gradients_of_the_eager_one(
    make: type[nn.Module], batch: Callable[[], tuple[torch.Tensor, torch.Tensor]], match: str | None
) -> None:
    cfg = policy_config("bf16", layers=rules((match, "float32")) if match else [])
    eager, policy, _ = built(make, cfg)
    model, other, _ = built(make, cfg)
    run, graphs = compiled(model)
    with switched(cfg):
        want = pass_through(eager, policy, batch())
        got = pass_through(run, other, batch())
    assert graphs
    assert torch.equal(got, want)
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("name", ["fp16", "tf32"])
def test_under_emulation_a_compiled_model_runs_eagerly(name: str) -> None:
    cfg = policy_config(name)
    eager, policy, _ = built(Gpt, cfg)
    model, other, _ = built(Gpt, cfg)
    run, graphs = compiled(model)
    assert torch.equal(pass_through(run, other, tokens()), pass_through(eager, policy, tokens()))
    assert not graphs


def test_the_audit_sees_into_a_compiled_model() -> None:
    cfg = policy_config("bf16")
    model, policy, mechanism = built(Gpt, cfg)
    run, _ = compiled(model)
    with switched(cfg):
        pass_through(run, policy, tokens())
        with Auditor(model, assign(model, cfg, mechanism), cfg, mechanism) as auditor:
            pass_through(run, policy, tokens())
    audit = auditor.result()
    assert audit.verdict == "match"
    assert {row.name: row.forward for row in audit.rows}["blocks.0.mlp.1"] == ("bfloat16",)
