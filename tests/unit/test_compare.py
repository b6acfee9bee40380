"""Comparisons of runs whose results are known: who is compared, what is refused, what is said."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpt.errors import ConfigError, RecordError
from mpt.record.strict import dumps
from mpt.report.compare import golden
from mpt.report.compare.comparison import Comparison, Options, compare, read
from mpt.report.compare.document import to_json
from mpt.report.compare.figures import pareto
from mpt.report.compare.find import run_folders
from mpt.report.compare.judge import REFUSED, noise_floor, seeds_text
from mpt.report.compare.sections import sections
from mpt.report.compare.sections.speed import section as speed_section
from mpt.report.curves import kept
from mpt.report.markdown import to_markdown
from mpt.stats.equivalence import BETTER, EQUIVALENT, INCONCLUSIVE, WORSE
from tests.unit._runs_kit import FLAGS, write_run

BASE = (0.900, 0.904, 0.898, 0.902)


def sweep(root: Path, **offsets: float) -> Path:
    """Four seeds of fp32, and of each precision with accuracies moved by its offset."""
    for precision, offset in {"fp32": 0.0, **offsets}.items():
        for seed, accuracy in enumerate(BASE):
            write_run(root / f"{precision}-{seed}", precision, seed, accuracy + offset + 1e-4 * seed * (offset != 0))
    return root


def made(*given: Path, **options: object) -> Comparison:
    runs, skipped = read([str(path) for path in given])
    return compare(runs, skipped, Options(**options))  # type: ignore[arg-type]


def words(comparison: Comparison) -> dict[str, str]:
    return {j.pairing.candidate.label: j.word for j in comparison.judged}


def test_each_precision_gets_the_verdict_that_its_distance_deserves(tmp_path: Path) -> None:
    found = made(sweep(tmp_path, bf16=0.001, fp8=-0.03, fp16=0.02, tf32=0.0048))
    assert words(found) == {"bf16": EQUIVALENT, "fp8": WORSE, "fp16": BETTER, "tf32": INCONCLUSIVE}
    assert [b.label for b in found.plan.baselines] == ["fp32"]


def test_pairs_are_of_equal_seed_whatever_the_spread_over_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.80, 0.90, 0.85)):
        write_run(tmp_path / f"a{seed}", "fp32", seed, accuracy)
        write_run(tmp_path / f"b{seed}", "bf16", seed, accuracy + 0.001)
    (judged,) = made(tmp_path).judged
    assert judged.word == EQUIVALENT
    assert judged.differences == pytest.approx({0: 0.001, 1: 0.001, 2: 0.001})


def test_one_seed_says_what_cannot_be_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fp32", 0, 0.9)
    write_run(tmp_path / "b", "bf16", 0, 0.9)
    (judged,) = made(tmp_path).judged
    assert seeds_text(judged) == "inconclusive: at least 1 more seed needed"
    assert "a single pair has no spread" in judged.sentence
    assert judged.speed is not None
    assert judged.speed.low is None


def speed_table(found: Comparison) -> dict[str, str]:
    return {row[0]: row[2] for row in speed_section(found).tables[0].rows}


def test_a_speed_that_was_not_shown_to_differ_says_so_in_its_cell(tmp_path: Path) -> None:
    for seed, (near, fast) in enumerate(((1001.0, 1500.0), (999.0, 1510.0), (1003.0, 1490.0))):
        for name, speed in (("fp32", 1000.0), ("bf16", near), ("fp16", fast)):
            write_run(tmp_path / f"{name}{seed}", name, seed, 0.9, samples_per_s=speed)
    found = made(tmp_path)
    told = speed_table(found)
    assert told["bf16"].endswith(": not shown to differ")
    assert re.fullmatch(r"1.5 \(1.\d+ to 1.\d+\)", told["fp16"])
    shown = {c["config"]: c["speed_ratio"]["shown"] for c in to_json(found)["comparisons"]}
    assert shown == {"bf16": False, "fp16": True}


def test_speeds_are_compared_where_as_much_was_looked_at_alone(tmp_path: Path) -> None:
    for seed, level in enumerate(("off", "off", "full")):
        write_run(tmp_path / f"a{seed}", "fp32", seed, samples_per_s=1000)
        write_run(tmp_path / f"b{seed}", "bf16", seed, samples_per_s=900 if level == "full" else 1200, numerics=level)
    found = made(tmp_path)
    (judged,) = found.judged
    assert judged.speed is not None
    assert (judged.speed.n, judged.speed.value) == (2, pytest.approx(1.2))
    assert sorted(judged.differences) == [0, 1, 2]
    assert any("numerics=full and off, which alters no number but slows steps" in what for _, what in notes_of(found))


def test_no_speed_is_claimed_of_runs_that_were_looked_at_against_others(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fp32", seed)
        write_run(tmp_path / f"b{seed}", "bf16", seed, numerics="light")
    found = made(tmp_path)
    assert found.judged[0].speed is None
    assert speed_table(found)["bf16"] == "no claim"
    assert ("careful", "bf16: no speed claim: numerics differ, and looking at them slows steps") in notes_of(found)


def notes_of(found: Comparison) -> tuple[tuple[str, str], ...]:
    return speed_section(found).notes


def test_a_diverged_run_is_worse_and_a_failed_one_is_left_out(tmp_path: Path) -> None:
    sweep(tmp_path, bf16=0.001, fp16=0.001)
    for precision, marker in (("fp16", "DIVERGED"), ("bf16", "FAILED")):
        (tmp_path / f"{precision}-1" / "DONE").rename(tmp_path / f"{precision}-1" / marker)
    found = {j.pairing.candidate.label: j for j in made(tmp_path).judged}
    assert found["fp16"].word == WORSE
    assert "diverged in 1 of 4 runs" in found["fp16"].sentence
    assert sorted(found["bf16"].differences) == [0, 2, 3]
    assert "1 of 4 runs left out: failed" in found["bf16"].sentence


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"batch": 32}, "data.batch_size: 32 here, 64 in the baseline"),
        ({"device": "another"}, "device: cpu: another here"),
        ({"data": "d1"}, "data: content, split or order differ for seed 0"),
        ({"flags": {**FLAGS, "cudnn.allow_tf32": True}}, "TF32: cudnn.allow_tf32=True here, False in the baseline"),
        ({"seed": 5}, "seeds: 5 here, 0 in the baseline"),
        ({"lr": 0.1}, "optimizer.lr: 0.1 here, 0.001 in the baseline"),
    ],
)
def test_what_differs_beyond_the_axis_forbids_a_conclusion(change: dict[str, object], why: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fp32")
    write_run(tmp_path / "b", "bf16", **change)  # type: ignore[arg-type]
    found = made(tmp_path)
    assert found.judged[0].word == REFUSED
    assert found.refused
    assert why in found.judged[0].sentence
    forced = made(tmp_path, force=True)
    assert forced.judged[0].word == INCONCLUSIVE
    assert f"concluded by --force although {why}" in to_markdown(sections(forced)).replace("\\", "")


def test_tf32_is_allowed_to_have_tf32_on(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fp32")
    write_run(tmp_path / "b", "tf32", flags={**FLAGS, "cudnn.allow_tf32": True})
    assert made(tmp_path).judged[0].word == INCONCLUSIVE


def test_predicted_steps_stand_beside_measured_ones_where_runs_have_them(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fp32")
    write_run(tmp_path / "b", "bf16")
    assert "predicted step" not in speed_section(made(tmp_path)).tables[0].columns
    file = tmp_path / "b" / "summary.json"
    document = json.loads(file.read_text())
    document["speed"]["predicted_step_ms"] = 12.5
    file.write_text(json.dumps(document))
    table = speed_section(made(tmp_path)).tables[0]
    at = table.columns.index("predicted step")
    assert {row[0]: row[at] for row in table.rows} == {"fp32": "-", "bf16": "12.5 ms"}


def test_batches_alone_are_compared_only_when_asked(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fp32", batch=64)
    write_run(tmp_path / "b", "fp32", batch=128)
    assert made(tmp_path).refused
    asked = made(tmp_path, axis=("data.batch_size",))
    assert asked.judged[0].word == INCONCLUSIVE
    assert asked.judged[0].pairing.candidate.label == "data.batch_size=128"


def test_a_second_swept_key_makes_strata_with_a_baseline_each(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        for precision in ("fp32", "bf16"):
            for seed in range(2):
                write_run(tmp_path / f"{lr}-{precision}-{seed}", precision, seed, 0.9, lr=lr)
    found = made(tmp_path)
    assert [b.label for b in found.plan.baselines] == ["fp32 optimizer.lr=0.1", "fp32 optimizer.lr=0.2"]
    assert [(j.pairing.candidate.label, j.pairing.baseline.label) for j in found.judged] == [
        ("bf16 optimizer.lr=0.1", "fp32 optimizer.lr=0.1"),
        ("bf16 optimizer.lr=0.2", "fp32 optimizer.lr=0.2"),
    ]


def test_a_baseline_or_axis_that_is_not_there_is_named(tmp_path: Path) -> None:
    sweep(tmp_path, bf16=0.0)
    with pytest.raises(ConfigError, match=r"did you mean `bf16`"):
        made(tmp_path, baseline="bf61")
    with pytest.raises(ConfigError, match="does not differ"):
        made(tmp_path, axis=("optimizer.lr",))
    with pytest.raises(ConfigError, match="no run has `bleu`"):
        made(tmp_path, metric="bleu")
    assert [b.label for b in made(tmp_path, baseline="bf16").plan.baselines] == ["bf16"]


def test_less_is_better_for_losses_and_the_margin_is_a_share(tmp_path: Path) -> None:
    for seed in range(3):
        for precision, loss in (("fp32", 1.0), ("bf16", 1.05)):
            final = {"final": {"eval_loss": loss + 0.01 * seed + 0.0001 * seed * (precision == "bf16")}}
            write_run(tmp_path / f"{precision}{seed}", precision, seed, summary=final)
    (judged,) = made(tmp_path, metric="eval_loss").judged
    assert judged.word == WORSE
    assert judged.verdict is not None
    assert judged.verdict.margin == pytest.approx(0.01 * 1.01)
    assert all(d < 0 for d in judged.differences.values())


def test_emulated_runs_get_no_speed_claim_and_no_place_on_the_front(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / f"a{seed}", "fp32", seed, BASE[seed])
        write_run(tmp_path / f"b{seed}", "fp16", seed, BASE[seed], how="emulated", samples_per_s=9000, peak_bytes=1000)
    found = made(tmp_path)
    assert found.judged[0].word == EQUIVALENT
    assert found.judged[0].speed is None
    assert found.choice.recommended == "fp32"
    assert "was emulated" in found.choice.reason
    assert found.choice.front == ("fp32",)


def test_all_that_were_emulated_are_named_in_the_recommendation(tmp_path: Path) -> None:
    for precision in ("fp32", "tf32", "fp16"):
        for seed in range(4):
            how = "native" if precision == "fp32" else "emulated"
            write_run(tmp_path / f"{precision}-{seed}", precision, seed, 0.9 + seed * 1e-5, how=how)
    told = made(tmp_path).choice.reason
    assert told.startswith("stay with fp32 here: ")
    assert "are as good, but no speed claim: " in told
    assert told.endswith(" were emulated")
    assert [told.count(name) for name in ("tf32", "fp16")] == [2, 2]


def test_what_is_recommended_though_another_has_the_better_means_says_that_this_is_unproven(tmp_path: Path) -> None:
    for precision, offset, speed in (("fp32", 0.0, 1000.0), ("bf16", 0.003, 1100.0)):
        for seed in range(3):
            spread = 0.02 * seed * (precision == "bf16")
            write_run(tmp_path / f"{precision}-{seed}", precision, seed, 0.9 + offset + spread, samples_per_s=speed)
    found = made(tmp_path)
    assert (found.choice.recommended, found.choice.dominated) == ("fp32", {"fp32": "bf16"})
    told = str(sections(found)[0].tables)
    assert "baseline; recommended, as bf16, ahead by its means, is not shown to be the better choice (inc" in told
    assert "behind bf16" not in told


@pytest.mark.parametrize(("first", "second"), [(0.94, 0.94), (0.1, 0.999), (1.0, 1.0), (0.0, 0.0)])
def test_the_axis_of_accuracy_holds_the_points_and_does_not_run_far_past_them(
    tmp_path: Path, first: float, second: float
) -> None:
    for precision, accuracy in (("fp32", first), ("bf16", second)):
        write_run(tmp_path / precision, precision, 0, accuracy)
    figure = pareto.figure(made(tmp_path))
    assert figure is not None
    low, high = figure.layout["yaxis"]["range"]
    assert -0.05 <= low < min(first, second) <= max(first, second) < high <= 1.05
    assert high - low <= max(0.05, 1.6 * abs(second - first))


def test_the_fastest_that_is_as_good_is_recommended_and_the_beaten_are_greyed(tmp_path: Path) -> None:
    speeds = {"fp32": (1000.0, 10), "bf16": (2000.0, 6), "fp16": (1500.0, 8), "fp8": (3000.0, 4)}
    for precision, (rate, memory) in speeds.items():
        for seed in range(4):
            accuracy = BASE[seed] - (0.05 + 1e-4 * seed if precision == "fp8" else 0)
            write_run(tmp_path / f"{precision}{seed}", precision, seed, accuracy, samples_per_s=rate * (1 + seed / 500),
                      peak_bytes=memory * 10**6)  # fmt: skip
    choice = made(tmp_path).choice
    assert choice.recommended == "bf16"
    assert choice.reason.startswith("bf16 is equivalent to fp32 in final accuracy within ±0.005 over 4 seeds, 2 times")
    assert set(choice.dominated) == {"fp32", "fp16"}
    assert set(choice.front) == {"bf16", "fp8"}


def test_the_noise_floor_knows_seeds_and_repeats(tmp_path: Path) -> None:
    for i, (seed, accuracy) in enumerate([(0, 0.90), (0, 0.92), (1, 0.95)]):
        write_run(tmp_path / str(i), "fp32", seed, accuracy)
    write_run(tmp_path / "x", "bf16", 0, 0.9)
    found = made(tmp_path)
    floor = noise_floor(found.plan.baselines[0], found.metric)
    assert floor["sd_of_repeats"] == pytest.approx(np.std([0.90, 0.92], ddof=1))
    assert floor["sd_over_seeds"] == pytest.approx(np.std([0.91, 0.95], ddof=1))


def test_runs_part_where_the_difference_leaves_the_noise_of_seeds(tmp_path: Path) -> None:
    def curve(seed: int, jump: float = 0.0) -> object:
        noise = np.random.default_rng(seed).normal(0, 0.02, 401)
        return lambda i: float(2 / i**0.5 + noise[i] + jump * (i > 250))

    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "fp32", seed, n=400, loss=curve(seed))  # type: ignore[arg-type]
        write_run(tmp_path / f"b{seed}", "bf16", seed, n=400, loss=curve(seed, 0.5))  # type: ignore[arg-type]
        write_run(tmp_path / f"c{seed}", "fp8", seed, n=400, loss=curve(seed))  # type: ignore[arg-type]
    found = made(tmp_path)
    partings = dict(zip([j.pairing.candidate.label for j in found.judged], found.partings, strict=True))
    bf16, fp8 = partings["bf16"], partings["fp8"]
    assert bf16 is not None
    assert fp8 is not None
    assert bf16.first_bit == 251
    assert bf16.first_step == 251
    assert (fp8.first_bit, fp8.first_step) == (None, None)


def test_steps_and_seconds_to_the_loss_that_all_reach(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fp32", loss=lambda i: 1 / i)
    write_run(tmp_path / "b", "bf16", loss=lambda i: 2 / i)
    found = made(tmp_path)
    slow_and_fast = {c.label: r for c, r in zip(found.configs, found.reached, strict=True)}
    assert slow_and_fast["fp32"].loss == pytest.approx(2 / 60)
    assert (slow_and_fast["fp32"].steps, slow_and_fast["bf16"].steps) == (30, 60)
    assert slow_and_fast["fp32"].seconds == pytest.approx(30 * 0.064)


def test_bad_folders_are_named_with_the_reason_and_the_rest_is_compared(tmp_path: Path) -> None:
    sweep(tmp_path / "x", bf16=0.001)
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "steps.jsonl").write_text('{"loss": 1}\n')
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "steps.jsonl").write_text('{"schema": "mpt.steps/9"}\n')
    write_run(tmp_path / "none taken", "fp32", n=2, marker=None)
    (tmp_path / "none taken" / "steps.jsonl").write_text('{"schema": "mpt.steps/1"}\n')
    names = ("x", "empty", "foreign", "newer", "none taken", "missing")
    found = made(*(tmp_path / name for name in names))
    assert words(found) == {"bf16": EQUIVALENT}
    told = {Path(p.where).name: p.what for p in found.skipped}
    assert len(found.skipped) == 5
    assert "holds no run" in told["empty"]
    assert "no such folder" in told["missing"]
    assert "took no step" in told["none taken"]
    text = to_markdown(sections(found)).replace("\\", "")
    assert "mpt.steps/9, this version reads mpt.steps/1" in text
    assert "is not a record of mpt" in text
    with pytest.raises(RecordError, match="2 problems"):
        made(tmp_path / "empty", tmp_path / "newer")


def test_an_unfinished_run_takes_part_in_pictures_and_not_in_verdicts(tmp_path: Path) -> None:
    sweep(tmp_path, bf16=0.001)
    write_run(tmp_path / "fp16-0", "fp16", 0, marker=None)
    found = {j.pairing.candidate.label: j for j in made(tmp_path, force=True).judged}
    assert found["fp16"].word == INCONCLUSIVE
    assert "nothing can be said (1 of 1 runs left out: unfinished)" in found["fp16"].sentence


def test_folders_of_sweeps_are_found_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    root = tmp_path / "a=b, ü" / "14-00-00"
    for n in (10, 9, 1):
        write_run(root / str(n))
    assert [p.name for p in run_folders([tmp_path / "a=b, ü"])] == ["1", "9", "10"]
    assert run_folders([root / "9", root / "9", root])[0] == root / "9"
    assert len(run_folders([root / "9", root])) == 3


def test_long_series_keep_every_spike_and_gap() -> None:
    values = np.sin(np.arange(100_000) / 5000)
    spikes = np.random.default_rng(0).choice(100_000, 300, replace=False)
    values[spikes[:200:2]], values[spikes[1:200:2]], values[spikes[200:]] = 50.0, -50.0, np.nan
    index = kept(values)
    assert len(index) <= 5 * 400
    drawn = values[index]
    size = -(-100_000 // 400)
    for sign in (1, -1):
        buckets = {i // size for i in np.flatnonzero(values == sign * 50)}
        assert {i // size for i in index[drawn == sign * 50]} == buckets
    assert {i // size for i in index[np.isnan(drawn)]} == {i // size for i in np.flatnonzero(np.isnan(values))}
    assert index[0] == 0
    assert index[-1] == 99_999


@pytest.mark.parametrize("n", [0, 1, 399, 1600, 1601, 2001])
def test_series_of_any_length_are_thinned(n: int) -> None:
    index = kept(np.arange(n, dtype=float))
    assert list(index[[0, -1]] if n else []) == ([0, n - 1] if n else [])
    assert (np.diff(index) > 0).all()


def test_the_json_is_strict_and_holds_the_verdicts(tmp_path: Path) -> None:
    sweep(tmp_path, bf16=0.001)
    write_run(tmp_path / "fp16-0", "fp16", 0, math.nan, marker="DIVERGED", loss=lambda i: math.nan)
    document = json.loads(dumps(to_json(made(tmp_path, price_per_h=2.0))), parse_constant=lambda c: pytest.fail(c))
    assert document["schema"] == "mpt.compare/1"
    assert {c["config"]: c["verdict"] for c in document["comparisons"]}["bf16"] == EQUIVALENT
    assert document["configs"][0]["cost"] == pytest.approx(2.0 * 36 / 3600)
    assert document["noise_floor"]["fp32"]["sd_over_seeds"] == pytest.approx(np.std(BASE, ddof=1))


def test_runs_are_held_to_a_kept_comparison(tmp_path: Path) -> None:
    kept_document = json.loads(dumps(to_json(made(sweep(tmp_path / "then", bf16=0.001)))))
    now = made(sweep(tmp_path / "now", bf16=-0.03))
    held = {h.label: h.word for h in golden.hold(kept_document, now.configs, now.metric, force=False)}
    assert held == {"fp32": EQUIVALENT, "bf16": WORSE}
    alone = made(sweep(tmp_path / "alone"))
    missing = {h.label: h.word for h in golden.hold(kept_document, alone.configs, alone.metric, force=False)}
    assert missing["bf16"] == REFUSED


def test_comparing_imports_no_torch(tmp_path: Path) -> None:
    sweep(tmp_path, bf16=0.0)
    code = "import sys; from mpt.cli import main; main(['compare', sys.argv[1]]); "
    code += "sys.exit(any(m in sys.modules for m in ('torch', 'hydra', 'omegaconf')))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_on_a_gpu_the_state_of_tf32_stands_side_by_side(tmp_path: Path) -> None:
    for precision, value in (("fp32", "ieee"), ("tf32", "tf32")):
        flags = {"cuda.matmul.fp32_precision": value, "cudnn.conv.fp32_precision": value}
        env = {"schema": "mpt.env/1", "device": {"type": "cuda", "name": "H"}, "flags": flags}
        (write_run(tmp_path / precision, precision) / "env.json").write_text(json.dumps(env))
    text = to_markdown(sections(made(tmp_path)))
    assert "| TF32 of matmul, convolution | ieee, ieee | tf32, tf32 |" in text
