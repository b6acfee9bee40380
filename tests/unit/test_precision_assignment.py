"""Plan rows, and the bytes that the audit counts in the same pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpt.precision import Auditor, assign
from tests.unit._precision_kit import Gpt, built, pass_through, policy_config, rules, tokens


class Checkpointed(Gpt):
    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False)


def test_plans_need_no_weights_in_memory() -> None:
    cfg = policy_config("bf16")
    model, _, mechanism = built(Gpt, cfg)
    with torch.device("meta"):
        ghost = Gpt()
    assert assign(ghost, cfg, mechanism) == assign(model, cfg, mechanism)


def test_plan_rows_count_each_parameter_once_and_say_why() -> None:
    cfg = policy_config("fp16_master")
    model, _, mechanism = built(Gpt, cfg)
    rows = {row.name: row for row in assign(model, cfg, mechanism)}
    assert sum(row.params for row in rows.values()) == sum(p.numel() for p in model.parameters())
    assert rows["head"].params == 0
    assert "tied to embed" in rows["head"].reason
    assert rows["blocks.0.norm"].param == "float32"
    assert rows["blocks.0.norm"].reason == "norm is kept in float32"
    assert rows["blocks.0.mlp.1"].param == "float16"
    assert rows["blocks.0.mlp.1"].how == "emulated"


def test_plan_rows_name_the_rule_that_decided() -> None:
    cfg = policy_config("bf16", layers=rules(("blocks.1*", "float32")))
    model, _, mechanism = built(Gpt, cfg)
    rows = {row.name: row for row in assign(model, cfg, mechanism)}
    assert rows["blocks.1.attention.qkv"].reason == "kept float32 by the rule `blocks.1*`"
    assert rows["blocks.1.attention.qkv"].compute == "float32"
    assert rows["blocks.0.attention.qkv"].reason == "operands bfloat16 by the policy, sums float32"


def test_activation_bytes_are_exact_for_a_net_that_can_be_counted_by_hand() -> None:
    cfg = policy_config("fp32")
    model, policy, mechanism = built(lambda: nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), cfg)
    x = torch.randn(2, 8)
    with Auditor(model, assign(model, cfg, mechanism), cfg, mechanism) as auditor:
        with policy.forward():
            out = model(x)
        loss = out.sum()
        loss.backward()
    the_one_that_backward_starts_from = 1
    assert auditor.activation_bytes == 4 * (2 * 16 + 2 * 4 + 1 + the_one_that_backward_starts_from)
    assert auditor.peak_bytes >= auditor.activation_bytes + 4 * (8 * 16 + 16 + 16 * 4 + 4)


def test_checkpointing_and_half_activations_are_seen_in_the_bytes() -> None:
    def measured(make: type[nn.Module], name: str) -> int:
        cfg = policy_config(name)
        model, policy, mechanism = built(make, cfg)
        with Auditor(model, assign(model, cfg, mechanism), cfg, mechanism) as auditor:
            pass_through(model, policy, tokens())
        return auditor.activation_bytes

    assert measured(Checkpointed, "fp32") < measured(Gpt, "fp32") / 3
    assert measured(Gpt, "bf16_true") < measured(Gpt, "fp32")
