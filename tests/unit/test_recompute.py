"""Which modules activation checkpointing takes, what it leaves alone, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mpt.config.compose import compose
from mpt.config.fingerprint import fingerprint
from mpt.errors import ModelError
from mpt.models import gpt, mlp
from mpt.recompute import chosen, install, recomputed
from mpt.rng import seed_all
from mpt.types import DataSpec
from tests.contract import _blocks_model

TOKENS = DataSpec("text", "tokens", (8,), 16, 8, 8, (), "x")
IMAGES = DataSpec("digits", "images", (1, 8, 8), 10, 8, 8, (), "x")
KEY = "trainer.checkpoint_activations"


def named(name: str) -> Callable[[], nn.Module]:
    return lambda: torchvision.models.get_model(name, weights=None)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], int, set[str]]] = {
    "gpt": (lambda: gpt.build({"layers": 3}, TOKENS), 3, {"Block"}),
    "resnet18": (named("resnet18"), 8, {"BasicBlock"}),
    "vit_b_16": (named("vit_b_16"), 12, {"EncoderBlock"}),
    "convnext_tiny": (named("convnext_tiny"), 18, {"CNBlock"}),
    "efficientnet_b0": (named("efficientnet_b0"), 16, {"MBConv"}),
    "mobilenet_v3_small": (named("mobilenet_v3_small"), 11, {"InvertedResidual"}),
    "densenet121": (named("densenet121"), 58, {"_DenseLayer"}),
}
"""How to build it, how many blocks it has, and of which classes."""


@pytest.mark.parametrize("name", BLOCKS)
def test_the_repeated_blocks_of_a_net_are_found(name: str) -> None:
    make, count, kinds = BLOCKS[name]
    with torch.device("meta"):
        model = make()
    found = chosen(model, True)
    assert len(found) == count
    assert {type(model.get_submodule(module)).__name__ for module in found} == kinds


def test_stages_that_run_rows_of_blocks_are_gone_into() -> None:
    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Sequential(_blocks_model.Block(4), _blocks_model.Block(4))

    model = nn.Sequential(Stage(), Stage())
    assert chosen(model, True) == ("0.row.0", "0.row.1", "1.row.0", "1.row.1")


def test_globs_take_the_outermost_of_what_they_match() -> None:
    model = gpt.build({"layers": 2}, TOKENS)
    assert chosen(model, ["blocks.*"]) == ("blocks.0", "blocks.1")
    assert chosen(model, ["blocks.[01].attention", "head"]) == ("blocks.0.attention", "blocks.1.attention", "head")
    assert "blocks" not in chosen(model, ["*"])
    assert chosen(model, False) == chosen(model, []) == ()


def test_a_module_at_several_places_is_taken_once() -> None:
    shared = _blocks_model.Block(4)
    model = nn.ModuleDict({"a": nn.ModuleList([shared, _blocks_model.Block(4)]), "b": nn.Sequential(shared)})
    assert chosen(model, True) == chosen(model, ["?.?"]) == ("a.0", "a.1")


def test_what_is_never_called_can_not_be_named() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 8)
    with pytest.raises(ModelError, match=r"self_attn\.out_proj"):
        chosen(model, ["self_attn.out_proj"])
    assert chosen(model, ["self_attn*"]) == ("self_attn",)


def test_what_matches_nothing_is_told_with_near_names() -> None:
    model = gpt.build({"layers": 2}, TOKENS)
    with pytest.raises(ModelError, match=r"`block\.\*` matches no module") as raised:
        chosen(model, ["block.*", "heat"])
    assert [p.hint for p in raised.value.problems][1] == "did you mean `head`?"


def test_a_model_without_blocks_is_told_how_to_name_modules() -> None:
    with pytest.raises(ModelError, match="no repeated blocks") as raised:
        chosen(mlp.build({}, IMAGES), True)
    assert f"{KEY}=[" in raised.value.problems[0].hint


def test_a_block_that_changes_its_input_is_refused() -> None:
    model = _blocks_model.make(3, kind="InPlace")
    install(model, chosen(model, True))
    with pytest.raises(ModelError, match=r"`1\.0` changes its input in place"):
        model(torch.randn(2, 1, 6, 6))


class Called(nn.Module):
    """Hands its input on by keyword, or inside of a tuple."""

    def __init__(self, inner: nn.Module, way: str) -> None:
        super().__init__()
        self.inner, self.way = inner, way

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x=x * 1) if self.way == "keyword" else self.inner((x * 1, None))
        return out


class Taking(nn.Module):
    """Drops some of its input, which it may change."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout(0.5, inplace=in_place)

    def forward(self, x: Tensor | tuple[Tensor, None]) -> Tensor:
        out: Tensor = self.layer(self.drop(x[0] if isinstance(x, tuple) else x))
        return out


@pytest.mark.parametrize("way", ["keyword", "tuple"])
def test_inputs_of_any_place_are_watched_and_known_to_torch(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps random states of the devices of positional arguments alone: a mask would be drawn anew."""
    given: list[object] = []
    monkeypatch.setattr("mpt.recompute.checkpoint", lambda *a, **k: given.extend(a) or checkpoint(*a, **k))
    gradients = []
    for on in (False, True):
        seed_all(0)
        model = Called(Taking(in_place=False), way)
        install(model, ["inner"] if on else [])
        model(torch.ones(8, 4)).square().sum().backward()
        gradients.append(model.inner.get_parameter("layer.weight").grad)
    assert sum(isinstance(x, Tensor) for x in given) == 1
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert gradients[0].equal(gradients[1])
    changing = Called(Taking(in_place=True), way)
    install(changing, ["inner"])
    with pytest.raises(ModelError, match="`inner` changes its input in place"):
        changing(torch.ones(8, 4))


def _replaces(state: dict[str, Any]) -> None:
    state["x"][0] = state["x"][0] + 1


def _adds(state: dict[str, Any]) -> None:
    state["loss"] = state["x"][0].sum()


@pytest.mark.parametrize("change", [_replaces, _adds])
def test_a_block_that_writes_into_a_dict_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    """What it writes would not reach its caller, and be there too early when it is computed again."""

    class Writes(nn.Linear):
        def forward(self, state: dict[str, Any]) -> Tensor:
            change(state)
            return super().forward(state["x"][0])

    model = nn.ModuleDict({"a": Writes(3, 3), "b": nn.Linear(3, 3)})
    install(model, ["a"])
    with pytest.raises(ModelError, match="`a` puts something else into a list or dict"):
        model["a"]({"x": [torch.randn(2, 3)], "more": None})


def test_names_stay_and_without_gradients_nothing_is_wrapped() -> None:
    model, plain = (_blocks_model.make(3) for _ in range(2))
    install(model, chosen(model, True))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 1, 6, 6)
    with torch.no_grad():
        assert model.eval()(x).equal(plain.eval()(x))


class Seeing(nn.Module):
    """Notes for each call which module is being computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen: list[str | None] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(recomputed())
        out: Tensor = self.layer(x).sigmoid() * x
        return out


def test_whoever_asks_is_told_what_is_computed_again() -> None:
    model = nn.Sequential(Seeing(), Seeing())
    install(model, ["1"])
    model(torch.randn(2, 4)).sum().backward()
    assert [m.seen for m in model] == [[None], [None, "1"]]
    assert recomputed() is None


def test_a_backward_that_fails_leaves_buffers_and_names_as_they_were() -> None:
    class Failing(_blocks_model.Block):
        def forward(self, x: Tensor) -> Tensor:
            if recomputed():
                raise ValueError("of the user")
            return super().forward(x)

    model = nn.Sequential(Failing(2), nn.Flatten())
    install(model, ["0"])
    norm = model.get_submodule("0.norm")
    mean = norm.running_mean
    with pytest.raises(ValueError, match="of the user"):
        model(torch.randn(2, 2, 3, 3)).sum().backward()
    assert norm.running_mean is mean
    assert recomputed() is None


def test_a_graph_gone_through_twice_is_computed_again_from_the_same_state() -> None:
    grads = []
    for asked in (False, True):
        seed_all(0)
        model = _blocks_model.make(3, kind="Drawing")
        install(model, chosen(model, asked))
        loss = model(torch.ones(2, 1, 6, 6)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(a is not None and a.equal(b) for a, b in zip(*grads, strict=True))


def test_it_is_part_of_what_identifies_a_result_only_where_a_compiler_works_on_it() -> None:
    marks = {
        (compiled, on): fingerprint(compose([f"trainer.compile={compiled}", f"{KEY}={on}"]))
        for compiled in ("false", "true")
        for on in ("false", "true")
    }
    assert marks["false", "false"] == marks["false", "true"]
    assert len(set(marks.values())) == 3


def test_values_are_words_or_globs() -> None:
    asked = {word: compose([f"{KEY}={word}"]).trainer.checkpoint_activations for word in ("true", "a.*", "[a.*,3]")}
    assert asked == {"true": True, "a.*": ["a.*"], "[a.*,3]": ["a.*", "3"]}
