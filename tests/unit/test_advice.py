"""What other loss scalings and formats would have done, from a run's record alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mpt.errors import RecordError
from mpt.formats.operand import Operand
from mpt.formats.quantise import quantise
from mpt.record.numerics import Noise, numerics_of
from mpt.record.reader import read_run
from mpt.report.advice.history import history
from mpt.report.advice.presets import own, presets
from mpt.report.advice.recommend import advise
from mpt.report.advice.replay import replay
from mpt.report.advice.survival import TARGETS, Layer, cancels, expected_db, headroom_bits, layers
from mpt.report.command import advised, report
from mpt.report.compare.brief import brief_of
from mpt.report.compare.comparison import Options, compare, read
from mpt.report.compare.document import to_json
from mpt.report.compare.sections import sections
from mpt.report.figure import Drawn
from mpt.report.figures.exponents import BY_ROLE
from mpt.report.markdown import to_markdown
from mpt.report.sections import advice, numerics
from mpt.report.sections.numerics import noise_scale
from tests.e2e._run import TINY, Done
from tests.unit._numerics_kit import look, looked_at, spread_out
from tests.unit._runs_kit import write_run
from tests.unit.test_exponents import told

STEPS = (1, 20, 40, 60)
FP16, BF16, FP8, MXFP8 = TARGETS


def run_of(folder: Path, gradients: Tensor, **given: object) -> Path:
    lines = [look(step, {"gradients": {"fc.weight": gradients}}) for step in STEPS]
    return looked_at(folder, lines, **given)  # type: ignore[arg-type]


def recommended(folder: Path) -> tuple[str | None, str]:
    found = advice.section(read_run(folder))
    assert found is not None
    return found.data["recommended"], found.data["reason"]


def test_gradients_around_one_ask_for_no_scaling(tmp_path: Path) -> None:
    assert recommended(run_of(tmp_path / "r", spread_out(-3, 2)))[0] == "scaling=none"


def test_gradients_around_1e8th_ask_for_a_scale_between_loss_and_overflow(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r", spread_out(-27, 2))
    words, why = recommended(folder)
    assert words is not None
    assert words.startswith("scaling=dynamic scaling.init_scale=")
    init = float(words.split()[1].partition("=")[2])
    grads = told(spread_out(-27, 2))
    assert grads.loss("float16", init).lost < 1e-3
    assert grads.headroom_bits("float16", init) > 4  # type: ignore[operator]
    assert "without scaling float16 loses" in why


def test_gradients_wider_than_float16_ask_for_bf16(tmp_path: Path) -> None:
    words, why = recommended(run_of(tmp_path / "r", spread_out(-30, 18)))
    assert words is None
    assert "bf16" in why


def test_layers_that_need_different_scales_ask_for_one_each(tmp_path: Path) -> None:
    tensors = {"gradients": {"a.weight": spread_out(-7, 2), "b.weight": spread_out(-38, 2, seed=1)}}
    folder = looked_at(tmp_path / "r", [look(step, tensors) for step in STEPS])
    past = history(read_run(folder))
    assert past is not None
    found = {o.name: o for o in advise(past).outcomes}
    assert found["per_layer"].cost < found["dynamic"].cost
    words, why = recommended(folder)
    assert words is None or "per_layer" in words, why


@pytest.mark.parametrize("name", ["dynamic", "megatron"])
def test_a_replay_of_the_runs_own_scaling_skips_the_steps_that_it_skipped(name: str, tmp_path: Path) -> None:
    words = ("precision=fp16", f"scaling={name}", "scaling.growth_interval=3", "trainer.max_steps=60")
    large = ("scaling.init_scale=16777216", "scaling.max_scale=1e12")
    run = Done(tmp_path / "r", *TINY, *words, *large, "numerics=light", "numerics_every=10")
    read = read_run(run.folder)
    past, constants = history(read), own(read.config)
    assert past is not None
    assert constants is not None
    again = replay("own", constants, past)
    assert again.skipped == read.steps.applied.count(False) > 3
    assert (again.low, again.high) == (min(read.steps.scale), max(read.steps.scale))


def test_every_preset_is_replayed_and_more_scale_means_more_skips_and_less_loss(tmp_path: Path) -> None:
    past = history(read_run(run_of(tmp_path / "r", spread_out(-20, 4))))
    assert past is not None
    assert presets().keys() <= {o.name for o in advise(past).outcomes}
    static = [replay("static", {**presets()["static"], "init_scale": 2.0**k}, past) for k in range(-4, 40, 4)]
    skips = [o.skipped for o in static]
    assert skips == sorted(skips)
    lost = [o.lost for o in static if o.lost is not None]
    assert lost == sorted(lost, reverse=True)


def test_a_broken_loss_is_skipped_at_every_scale(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r", spread_out(-3, 2), loss=lambda i: math.nan if i == 30 else 1.0, skips=[30])
    past = history(read_run(folder))
    assert past is not None
    assert replay("none", presets()["none"], past).skipped == 1
    assert past.limit[29] == -math.inf


def test_between_looks_the_largest_gradient_follows_the_norm(tmp_path: Path) -> None:
    past = history(read_run(run_of(tmp_path / "r", spread_out(-3, 2))))
    assert past is not None
    top = told(spread_out(-3, 2)).top
    assert np.allclose(past.largest, top), "norms of these runs are all 1"


def test_gradients_that_are_all_zero_in_float16_are_told_of(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r", torch.zeros(100), precision="fp16")
    words, why = recommended(folder)
    assert words == "scaling=dynamic"
    assert "every gradient is exactly 0 in float16" in why
    found = numerics.section(read_run(folder))
    assert found is not None
    assert "sensitive to range" in found.notes[0][1]


def test_zeros_under_subnormal_gradients_count_as_lost(tmp_path: Path) -> None:
    small = spread_out(-27, 2).half().float()
    past = history(read_run(run_of(tmp_path / "r", small, precision="fp16")))
    assert past is not None
    zeros = float((small == 0).float().mean())
    assert past.lost(past.looks[0], 1.0) == pytest.approx(zeros, abs=0.01)
    assert past.lost(past.looks[0], 2.0**16) < 0.01


def layer_of(tensors: dict[str, dict[str, Tensor]], **more: Any) -> Layer:
    (found,) = layers(numerics_of([json.loads(json.dumps(look(1, tensors, **more)))]))
    return found


def test_a_layer_is_judged_by_format() -> None:
    tensors = {"activations": {"fc": spread_out(0, 2)}, "weights": {"fc.weight": spread_out(-5, 2)},
               "gradients": {"fc.weight": spread_out(-28, 2)}}  # fmt: skip
    layer = layer_of(tensors, sqnr_db={"fc": {"7": 53.0, "3": 12.0, "2": 23.0}})
    assert layer.fate(FP16, 1.0).why == "range"
    assert layer.fate(FP16, 2.0**16).why == ""
    assert layer.fate(BF16, 1.0).why == ""
    assert layer.fate(FP8, 1.0).why == "precision"
    assert not cancels(layer)  # type: ignore[arg-type]
    over = math.log2(65520)
    assert headroom_bits(layer, "float16", 1.0) == pytest.approx(over - told(tensors["activations"]["fc"]).top)


def test_scaled_gradients_are_judged_unscaled() -> None:
    plain, scaled = (layer_of({"gradients": {"fc.weight": spread_out(-20, 3) * s}}, scale=s) for s in (1.0, 2.0**9))
    assert scaled.fate(FP16, 1.0) == plain.fate(FP16, 1.0)


def test_a_tensors_own_scale_loses_what_rounding_with_it_loses() -> None:
    x = spread_out(-9, 5)
    got = layer_of({"activations": {"fc": x}}).fate(FP8, 1.0).forward
    rounded = quantise(x[None], Operand("float8_e4m3fn", "tensor"))
    assert got == pytest.approx(float((rounded == 0).float().mean()), abs=0.02)


@pytest.mark.parametrize("bits", [2.0, 5.0, 8.0])
def test_blocks_of_random_numbers_lose_what_mx_rounding_loses(bits: float) -> None:
    x = spread_out(0, bits, n=32_000)
    want = float((quantise(x.view(1, -1), Operand("float8_e4m3fn", "mx")) == 0).float().mean())
    assert told(x).block_underflow("e4m3", 32) == pytest.approx(want, abs=0.01 + 0.1 * want)


def test_usual_losses_of_rounding_fall_by_six_decibels_a_bit() -> None:
    assert expected_db(3) == pytest.approx(29.2, abs=0.1)
    assert expected_db(7) - expected_db(3) == pytest.approx(4 * 20 * math.log10(2))


def test_the_noise_scale_is_that_of_gradients_that_are_known() -> None:
    draw = np.random.default_rng(0)
    true, noise, small, big = draw.normal(size=1000), 5.0, 16, 64
    seen = []
    for _ in range(200):
        parts = [true + draw.normal(size=1000) * noise / small**0.5 for _ in range(4)]
        seen.append(Noise(float(parts[0] @ parts[0]), float(np.mean(parts, 0) @ np.mean(parts, 0)), small, big))
    assert noise_scale(seen) == pytest.approx(1000 * noise**2 / float(true @ true), rel=0.05)
    assert noise_scale([]) is None


def test_a_run_that_was_not_looked_at_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r")
    with pytest.raises(RecordError, match="numerics=light"):
        advised(str(folder), as_json=False)
    assert report(str(folder), as_json=True) == 0
    assert advice.section(read_run(folder)) is numerics.section(read_run(folder)) is None


def test_names_of_layers_are_escaped_and_the_document_is_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {"activations": {"<b>x\x1b[31m": spread_out(0, 2)}, "gradients": {"<b>x.weight": spread_out(-9, 2)}}
    folder = looked_at(tmp_path / "r", [look(step, tensors) for step in STEPS])
    assert report(str(folder), as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["advice"]["recommended"] == "scaling=none"
    assert len(document["numerics"]["layers"]) == 2
    assert "\\x1b" in document["numerics"]["layers"][0]["name"] or "\x1b" in document["numerics"]["layers"][0]["name"]
    for name in ("report.md", "report.html"):
        text = (folder / name).read_text()
        assert "<b>x" not in text
        assert "\x1b" not in text


def drawn_of(folder: Path) -> Drawn:
    return Drawn(0, 0, "r", "r", brief_of(read_run(folder)))


def test_the_heat_map_holds_each_layers_shares_under_the_ranges_of_formats(tmp_path: Path) -> None:
    x, scale = spread_out(-20, 3), 2.0**5
    lines = [look(step, {"gradients": {"a.weight": x * scale, "b.weight": torch.zeros(5)}}, scale) for step in STEPS]
    drawn = drawn_of(looked_at(tmp_path / "r", lines))
    picture = next(f for f in (h.figure([drawn], 1) for h in BY_ROLE) if f is not None)
    heat, *ranges = picture.traces
    assert picture.section == "numerics"
    assert heat["y"][len(ranges) :] == ["a"], "layers without numbers are left out, formats stand above"
    shares = dict(zip(heat["x"], heat["customdata"][-1], strict=True))
    assert sum(v for v in shares.values() if v) == pytest.approx(100, rel=1e-3)
    want = 100 * float(((x.abs() >= 2.0**-20) & (x.abs() < 2.0**-19)).float().mean())
    assert shares[-19.5] == pytest.approx(want, rel=1e-4)
    ends = {r["name"]: r["x"] for r in ranges}
    assert ends["float16 × 1"] == [-24, -14, 16]
    assert ends["float16 × 2^5"] == [-29, -19, 11]
    assert ends["e4m3, alone"] == [-9, -6, 9]
    assert BY_ROLE[0].figure([drawn, drawn], 1) is None


def test_layers_part_where_their_numbers_leave_their_own_spread(tmp_path: Path) -> None:
    def run(name: str, moved: float) -> Path:
        steps = range(1, 60, 6)
        at = {step: spread_out(0, 1, seed=step) for step in steps}
        lines = [look(s, {"activations": {"a": x, "b": x * 2 ** (moved * (s > 30))}}) for s, x in at.items()]
        return looked_at(tmp_path / name, lines, "fp32" if name == "base" else "bf16")

    made = compare(*read([run("base", 0.0), run("other", 2.0)]), Options(force=True))
    (parting,) = (p for p in made.partings if p is not None)
    assert parting.layers is not None
    assert [(p.role, p.module, p.step) for p in parting.layers] == [("activations", "b", 31)]
    assert parting.layers[0].bits == pytest.approx(2, abs=0.01)
    assert to_json(made)["comparisons"][0]["parts"]["layers"][0]["module"] == "b"
    text = to_markdown(sections(made))
    assert "| b | activations | 31 | +2.00 bits |" in text


def test_runs_that_were_not_looked_at_part_in_no_layer(tmp_path: Path) -> None:
    made = compare(*read([write_run(tmp_path / "a", "fp32"), write_run(tmp_path / "b", "bf16")]), Options(force=True))
    (parting,) = (p for p in made.partings if p is not None)
    assert parting.layers is None


def test_steps_with_a_broken_forward_pass_speak_against_no_strategy(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r", spread_out(-3, 2), loss=lambda step: math.nan if 30 <= step < 40 else 1.0)
    words, why = recommended(folder)
    assert words == "scaling=none"
    assert "skips 0 of 50 steps" in why
    found = advice.section(read_run(folder))
    assert found is not None
    assert any("10 steps were non-finite whatever the loss scale" in text for _, text in found.notes)


@pytest.mark.parametrize(("loss", "words"), [(math.nan, None), (1.0, "scaling=dynamic")])
def test_looks_that_found_no_finite_gradient_are_told_of(loss: float, words: str | None, tmp_path: Path) -> None:
    poisoned = torch.cat([spread_out(-3, 2), torch.tensor([math.inf])])
    folder = run_of(tmp_path / "r", poisoned, precision="fp16", loss=lambda _: loss)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("scaling: {name: dynamic}", "scaling: {name: static}"))
    got, why = recommended(folder)
    assert got == words
    assert "of 4 looks at the gradients none found them finite" in why
    assert ("no loss scale can cure that" in why) == (words is None)
    assert numerics.section(read_run(folder)) is None, "there is nothing but these gradients"


def test_where_no_gradient_was_finite_formats_are_judged_by_activations_and_say_so(tmp_path: Path) -> None:
    tensors = {"activations": {"fc": spread_out(0, 1)}, "gradients": {"fc.weight": torch.tensor([math.inf, 1.0])}}
    found = numerics.section(read_run(looked_at(tmp_path / "r", [look(1, tensors)])))
    assert found is not None
    texts = [text for _, text in found.notes]
    assert texts[0] == "no look found finite gradients: what follows is of activations and weights alone"
    assert not any("every layer would survive" in text for text in texts)


def test_one_layer_that_needs_a_scale_is_enough_to_ask_for_one(tmp_path: Path) -> None:
    """Its gradients are few among all: without the layer's own count nothing would seem to be lost."""
    tensors = {
        "gradients": {"big.weight": spread_out(-3, 2, n=20_000)},
        "output_gradients": {"tiny": spread_out(-27, 2)},
    }
    folder = looked_at(tmp_path / "r", [look(step, tensors) for step in STEPS])
    words, reason = recommended(folder)
    assert words is not None
    assert words.startswith("scaling=dynamic scaling.init_scale=")
    assert "1 of 2 layers (tiny); from 2^" in reason
    least = float(words.split("scaling.min_scale=")[1].split()[0])
    assert least > 1
    found = numerics.section(read_run(folder))
    assert found is not None
    told = [text for _, text in found.notes]
    assert "without a loss scale float16 is too narrow for 1 of 2 layers (tiny)" in " ".join(told)
    assert any(text.startswith("fp16 at loss scale 2^") and "every layer would survive" in text for text in told)


def test_a_table_that_shows_some_layers_says_of_how_many(tmp_path: Path) -> None:
    tensors = {"gradients": {f"fc{i}.weight": spread_out(-3, 2) for i in range(15)}}
    found = numerics.section(read_run(looked_at(tmp_path / "r", [look(step, tensors) for step in STEPS])))
    assert found is not None
    assert len(found.tables[0].rows) == 12
    assert ("", "the table shows the 12 of 15 layers that would lose most") in found.notes
