"""Rules by layer: which match, what they change in forward and backward, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpt.config.schema import LayerRule
from mpt.errors import PrecisionError
from mpt.precision import Auditor, assign
from mpt.precision.rules import changes_of_format, formats_inside
from tests.unit._precision_kit import Cnn, Gpt, built, images, pass_through, policy_config, rules, switched, tokens


def wanted(make: type[nn.Module], name: str, *pairs: tuple[str, str]) -> dict[str, str]:
    return formats_inside(make(), policy_config(name, layers=rules(*pairs)))


def test_the_first_rule_that_matches_wins() -> None:
    inside = wanted(Gpt, "bf16", ("blocks.1.mlp*", "bfloat16"), ("blocks.1*", "float32"))
    assert inside["blocks.1.mlp.1"] == "bfloat16"
    assert inside["blocks.1.attention.qkv"] == "float32"
    assert inside["blocks.0.attention.qkv"] == "bfloat16"


def test_a_rule_over_a_module_holds_for_all_inside_it() -> None:
    inside = wanted(Gpt, "bf16", ("blocks.0", "float32"))
    assert {inside[n] for n in inside if n.startswith("blocks.0")} == {"float32"}


def test_a_regular_expression_and_a_type_narrow_a_rule() -> None:
    model = Cnn()
    by_regex = formats_inside(model, policy_config("bf16", layers=rules((r"re:^conv\d$", "float32"))))
    assert [n for n, f in by_regex.items() if f == "float32"] == ["conv2"]
    by_type = formats_inside(model, policy_config("bf16", layers=[LayerRule("*", "float32", "Linear")]))
    assert [n for n, f in by_type.items() if f == "float32"] == ["head"]


def test_only_the_outermost_module_of_a_kept_part_is_a_border() -> None:
    changes = changes_of_format(Gpt(), policy_config("bf16", layers=rules(("blocks.1*", "float32"))))
    assert changes == {"blocks.1": "float32"}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (LayerRule("heads", "float32"), "did you mean `head`"),
        (LayerRule("con", "float32"), "`con` matches no module"),
        (LayerRule("re:^hed$", "float32"), "did you mean `head`"),
        (LayerRule("re:(", "float32"), "regular expression"),
        (LayerRule("*", "float32", "Liner"), "did you mean `Linear`"),
        (LayerRule("head", "float16"), "want float32 or bfloat16"),
    ],
)
def test_a_rule_that_can_do_nothing_is_refused(rule: LayerRule, told: str) -> None:
    with pytest.raises(PrecisionError, match=r"precision\.layers") as error:
        formats_inside(Cnn(), policy_config("bf16", layers=[rule]))
    assert told in str(error.value)


def test_all_rules_that_do_nothing_are_told_at_once() -> None:
    with pytest.raises(PrecisionError) as error:
        formats_inside(Cnn(), policy_config("bf16", layers=rules(("a", "float32"), ("b", "float16"))))
    assert [p.where for p in error.value.problems] == [
        "precision.layers[0].match",
        "precision.layers[1].format",
        "precision.layers[1].match",
    ]


def test_a_module_whose_forward_is_never_called_can_not_be_matched() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2))
    with pytest.raises(PrecisionError, match="matches no module"):
        formats_inside(model, policy_config("bf16", layers=rules(("*out_proj", "float32"))))
    assert formats_inside(model, policy_config("bf16", layers=rules(("0", "float32"))))["0"] == "float32"


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "bf16_true", "fp16_true", "fp16_master"])
@pytest.mark.parametrize("match", ["head", "conv2", "*"])
def test_a_kept_layer_multiplies_float32_both_ways_and_the_others_do_not(name: str, match: str) -> None:
    cfg = policy_config(name, layers=rules((match, "float32")))
    model, policy, mechanism = built(Cnn, cfg)
    rows = assign(model, cfg, mechanism)
    with switched(cfg), Auditor(model, rows, cfg, mechanism) as auditor:
        pass_through(model, policy, images())
    audit = auditor.result()
    assert audit.verdict == "match"
    for row in audit.rows:
        if row.name in ("conv", "conv2", "head"):
            kept = match in (row.name, "*")
            assert row.forward == row.backward == (("float32",) if kept else (cfg.compute,))


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16"])
def test_keeping_everything_gives_the_numbers_of_float32(name: str) -> None:
    kept, policy, _ = built(Cnn, policy_config(name, layers=rules(("*", "float32"))))
    plain, other, _ = built(Cnn, policy_config("fp32"))
    assert torch.equal(pass_through(kept, policy, images()), pass_through(plain, other, images()))
    for a, b in zip(kept.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16"])
def test_a_part_of_a_kept_module_can_be_taken_out_again(name: str) -> None:
    cfg = policy_config(name)
    cfg.layers = rules(("blocks.0.mlp.1", cfg.compute), ("blocks.0", "float32"))
    model, policy, mechanism = built(Gpt, cfg)
    with switched(cfg), Auditor(model, assign(model, cfg, mechanism), cfg, mechanism) as auditor:
        pass_through(model, policy, tokens())
    seen = {row.name: row for row in auditor.result().rows}
    for module, want in (
        ("blocks.0.mlp.1", cfg.compute),
        ("blocks.0.mlp.3", "float32"),
        ("blocks.1.mlp.1", cfg.compute),
    ):
        assert seen[module].forward == seen[module].backward == (want,)
    assert seen["blocks.0.attention"].forward == ("float32",)
    assert auditor.result().verdict == "match"


def test_the_gradient_through_a_kept_tfloat32_layer_is_exact_in_it_and_rounded_below() -> None:
    cfg = policy_config("tf32", layers=rules(("1", "float32")))
    model, policy, _ = built(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), cfg)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    hidden: list[Tensor] = []
    model[1].register_forward_pre_hook(lambda _m, args: hidden.append(args[0]))
    with policy.forward():
        out = model(x)
    with policy.backward():
        out.square().sum().backward()
    assert torch.equal(out, F.linear(hidden[0], model[1].weight, model[1].bias))
    assert torch.equal(model[1].weight.grad, (2 * out).t() @ hidden[0])
    assert not torch.equal(model[0].weight.grad, ((2 * out) @ model[1].weight).t() @ x)


def test_float32_evaluation_passes_borders_by() -> None:
    cfg = policy_config("fp16_true")
    cfg.layers = rules(("blocks.0.mlp", "float16"), ("blocks*", "float32"))
    model, policy, _ = built(Gpt, cfg)
    twin = copy.deepcopy(Gpt())
    twin.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    batch = tokens()
    with policy.evaluate("fp32"):
        got = model(batch[0])
    assert torch.equal(got, twin(batch[0]))


def test_wrapped_modules_keep_their_names_and_their_signature() -> None:
    plain = Cnn()
    model, _, _ = built(Cnn, policy_config("bf16", layers=rules(("head", "float32"))))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert model.head.forward.__name__ == "forward"


def test_keyword_arguments_and_nested_inputs_are_cast_at_the_border() -> None:
    class Picks(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], *, extra: dict[str, Tensor]) -> Tensor:
            assert {t.dtype for t in (*pair, *extra.values())} == {torch.float32}
            return pair[0] + pair[1] + extra["a"]

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.picks = Picks()

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            assert y.dtype == torch.bfloat16
            return self.picks((y, y), extra={"a": y})

    model, policy, _ = built(Outer, policy_config("bf16", layers=rules(("picks", "float32"))))
    with policy.forward():
        assert model(torch.randn(2, 4)).dtype == torch.float32


def test_a_rule_all_of_whose_modules_earlier_ones_take_is_refused() -> None:
    shadowed = rules(("blocks.1*", "float32"), ("blocks.0*", "float32"), ("blocks.*", "bfloat16"))
    with pytest.raises(PrecisionError, match=r"layers\[2\].match: `blocks.\*` decides nothing: .*\[0\].*\[1\]"):
        formats_inside(Gpt(), policy_config("bf16", layers=shadowed))
    assert formats_inside(Gpt(), policy_config("bf16", layers=rules(("blocks.1*", "float32"), ("*", "bfloat16"))))
