"""Predicted time: the roofline against hand-worked ops, FLOPs against torch's counter, and what `mpt plan` tells."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.utils.flop_counter import FlopCounterMode

from mpt.build import build, make_plan
from mpt.cli import main
from mpt.config.compose import compose
from mpt.config.gpus import GPUS
from mpt.config.saved import dump
from mpt.predict.calibrate import calibrate, calibrated
from mpt.predict.fake import trace
from mpt.predict.prediction import keeping
from mpt.predict.roofline import Rates, Time, as_tfloat32, gpu_rates, lowered, roofline
from mpt.predict.trace import Op, Trace
from mpt.record.reader import read_run
from mpt.report.sections.speed import section
from mpt.types import Unmeasured
from tests.e2e._run import Done

RATES = Rates({"bfloat16": 1e12, "float32": 1e11}, bandwidth=1e9, launch_s=1e-6)


def op(**given: Any) -> Op:
    plain: dict[str, Any] = dict(
        name="mm", module="a", phase="forward", flops=0, executed=0, form="", bytes_read=0, bytes_written=0,
        kernel=True, tensors=2, signature=0, micro=0,
    )  # fmt: skip
    return Op(**{**plain, **given})


def of(*ops: Op) -> Trace:
    return Trace(1, 1, ops, (), (), 0, {})


def seconds(*ops: Op, accumulate: int = 1, **more: Any) -> Time:
    found = roofline(of(*ops), RATES, accumulate, **more)
    assert isinstance(found, Time)
    return found


def test_an_op_takes_its_arithmetic_or_its_bytes_and_a_launch() -> None:
    product = op(flops=10**9, executed=10**9, form="bfloat16", bytes_read=10)
    assert seconds(product).total_s == pytest.approx(1e-3 + 1e-6)
    assert seconds(product).bounds["arithmetic"] == seconds(product).total_s
    copy = op(name="copy_", bytes_read=10**6, bytes_written=10**6)
    assert seconds(copy).total_s == pytest.approx(2e-3 + 1e-6)
    assert seconds(copy).modules["a"].bound == "bandwidth"
    assert seconds(op(bytes_read=8)).bounds["launch"] == pytest.approx(1e-6 + 8e-9)
    assert seconds(op(kernel=False)).total_s == 0


def test_a_fused_optimizer_of_many_tensors_takes_several_launches() -> None:
    assert seconds(op(phase="update", tensors=301)).total_s == pytest.approx(11e-6)


def test_the_second_micro_batch_stands_for_all_that_follow() -> None:
    ops = (op(), op(micro=1), op(phase="update", micro=1))
    assert seconds(*ops, accumulate=2).launches == 3
    assert seconds(*ops, accumulate=8).launches == 1 + 7 + 1


def test_what_was_measured_stands_for_what_is_reckoned() -> None:
    assert seconds(op(signature=3), op(), measured={3: 0.5}).total_s == pytest.approx(0.5 + 1e-6)


def test_a_format_without_a_rate_has_no_time() -> None:
    found = roofline(of(op(flops=2, executed=2, form="nvfp4")), RATES, 1)
    assert found == Unmeasured("no rate of products in nvfp4 is known")


@pytest.mark.parametrize(("name", "share"), [("a100", 0.87), ("v100", 0.87), ("h100", 0.80), ("b200", 0.78)])
def test_gpus_attain_a_share_of_their_dense_peak(name: str, share: float) -> None:
    rates = gpu_rates(GPUS[name])
    assert rates.rate("float16") == pytest.approx(GPUS[name].float16 * share * 1e12)
    assert rates.bandwidth == pytest.approx(GPUS[name].bandwidth_tb_s * 0.92e12)
    assert gpu_rates(GPUS["v100"]).rate("bfloat16") is None


def test_tf32_and_low_bits_change_products_only() -> None:
    made = of(op(flops=8, executed=8, form="float32"), op(name="add"))
    assert [o.form for o in as_tfloat32(made).ops] == ["tfloat32", ""]
    half = of(op(flops=8, executed=8, form="bfloat16", bytes_read=100), op(name="add", bytes_read=100), op(module="b"))
    low = lowered(half, {"a": "float8_e4m3fn"})
    assert [(o.form, o.bytes_read) for o in low.ops] == [("float8_e4m3fn", 200), ("", 100), ("", 0)]


GPT = (
    *("model=gpt", "model.layers=1", "model.width=32", "data=shakespeare", "data.batch_size=4", "data.limit=32"),
    "device=cpu",
)


@pytest.mark.parametrize("words", [["model=resnet18", "data=synthetic_images", "data.n=2", "data.image_size=32",
                                    "data.batch_size=2", "device=cpu"], ["device=cpu"]])  # fmt: skip
def test_a_traced_step_has_the_flops_of_a_real_one(words: list[str]) -> None:
    cfg = compose(words)
    traced = trace(cfg, make_plan(cfg))
    run = build(cfg)
    batch = next(run.data.train(start=0))
    with FlopCounterMode(display=False) as counter:
        run.task.loss_sum(run.model(batch.inputs), batch).backward()
    assert sum(o.flops for o in traced.ops) == counter.get_total_flops()


def test_attention_is_in_a_traced_step() -> None:
    cfg = compose([*GPT])
    traced = trace(cfg, make_plan(cfg))
    # heads 4, length 64, width of a head 8, batch 4: scores and mixture, forward and twice backward; causal runs half
    whole = 2 * (2 * 4 * 4 * 64 * 64 * 8) * 3
    attention = [o for o in traced.ops if "attention" in o.name]
    assert sum(o.flops for o in attention) == whole
    assert sum(o.executed for o in attention) == whole * (2 + 5) // 12
    assert {o.module for o in attention} == {"blocks.0.attention"}


def test_a_calibration_measures_the_steps_own_ops_on_this_device() -> None:
    cfg = compose([*GPT, "precision=bf16"])
    plan = make_plan(cfg)
    traced = trace(cfg, plan)
    found = calibrate(traced, plan.device, 1, budget_s=0.2)
    kernels = {o.signature for o in traced.ops if o.kernel}
    assert kernels <= found.measured.keys()  # those without time left are reckoned from the others
    assert 0 < found.covered <= 1
    assert set(found.rates.flops) == {"bfloat16"}
    told = calibrated(traced, found, 1)
    assert isinstance(told, Time)
    assert told.total_s > sum(found.measured[o.signature] for o in traced.ops if o.kernel) * 0.999
    cut = replace(traced, ops=traced.ops[:1])
    assert isinstance(calibrated(cut, found, 1), Time)


@pytest.mark.parametrize(
    ("batch", "accumulate", "largest", "kept"),
    [(64, 1, 22, (16, 4)), (64, 2, 64, (64, 2)), (7, 1, 5, (5, 2)), (8, 1, 1, (1, 8)), (100, 1, 60, (50, 2))],
)
def test_the_batch_of_an_update_is_kept_in_smaller_parts(
    batch: int, accumulate: int, largest: int, kept: tuple[int, int]
) -> None:
    assert keeping(batch, accumulate, largest) == kept
    assert kept[0] <= largest
    assert kept[0] * kept[1] >= batch * accumulate


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["plan", *args]) == 0
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def predicted(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["plan", *args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_for_an_absent_gpu_tells_memory_time_energy_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    found = predicted(capsys, *GPT[:-1], "device=h100-nvl", "precision=bf16", "--price", "3600")["predicted"]
    assert found["peak_bytes"] == sum(found["parts_bytes"].values())
    assert found["largest_batch"] > 1000
    assert found["step_s"] == pytest.approx(sum(found["bounds_s"].values()))
    assert found["cost"] == pytest.approx(found["run_s"])
    assert found["energy_j"] == pytest.approx(400 * found["run_s"])
    assert found["speedup_over_fp32"] > 0
    assert found["speedup_over_tf32"] > 0
    assert found["modules"]["head"]["bound"] in ("arithmetic", "bandwidth", "launch")


def test_emulated_formats_have_memory_and_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = predicted(capsys, *GPT, "precision=mxfp8")["predicted"]
    assert found["peak_bytes"] > 0
    assert found["step_s"] is None
    assert "no speed is claimed" in found["step_s_reason"]


def test_precisions_stand_side_by_side_and_one_page_has_it_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    words = ("model=mlp", "model.width=512", "data.batch_size=8", "device=a100", "precision=fp32,bf16,tf32")
    shown = output(capsys, *words, "--html", str(page))
    assert "fp32 native" in shown
    assert "tf32 native" in shown
    assert "bf16 takes" in shown  # half copies of large weights, and activations of eight samples
    assert "copies of the weights in half" in page.read_text()


def test_lists_of_any_keys_stand_side_by_side_each_against_float32_of_its_own_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []
    monkeypatch.setattr("mpt.predict.telling.trace", lambda *a: traced.append(a[0].precision.name) or trace(*a))
    words = ("model=mlp", "data.limit=64", "precision=bf16,fp32", "data.batch_size=8,32", "device=h100")
    found = predicted(capsys, *words)["plans"]
    assert sorted(traced) == 4 * ["bf16"] + 4 * ["fp32"]  # two batches of each; float32 of each batch is one of them
    assert found[1]["asked"] == {"precision": "bf16", "data.batch_size": "32"}
    alone = predicted(capsys, *words[:2], "precision=bf16", "data.batch_size=32", "device=h100")
    assert found[1]["predicted"] == alone["predicted"]
    assert "mlp on NVIDIA H100 80GB HBM3 in bf16 data.batch_size how peak" in output(capsys, *words, "precision=bf16")


def test_a_plan_of_several_processes_tells_each_ones_memory_and_what_they_send(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*GPT[:-1], "device=h100", "distributed=fsdp", "distributed.nproc=8", "precision=bf16", "--price", "2")
    assert "communication is not counted in the step: say what one process can send" in output(capsys, *words)
    shown = output(capsys, *words, "distributed.link_gb_s=0.001")
    assert "Predicted memory of each of 8 processes" in shown
    assert re.search(r"kB of weights, \S+ kB of gradients sent by each process in a step: .* show beside", shown)
    quiet, counted = (predicted(capsys, *words, *more)["predicted"] for more in ([], ["distributed.link_gb_s=0.001"]))
    assert quiet["communication_s"] is None
    assert "distributed.link_gb_s" in quiet["communication_s_reason"]
    assert counted["step_s"] == pytest.approx(quiet["step_s"] + counted["exposed_communication_s"])
    assert counted["communication_s"] == pytest.approx(sum(counted["sent_bytes"].values()) / 1e6)
    assert counted["samples"] == 8 * 4
    assert counted["cost"] == pytest.approx(8 * 2 * counted["run_s"] / 3600)


def test_a_cost_is_told_for_the_run_and_an_epoch_in_the_prices_currency(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=mlp", "data.limit=256", "device=h100", "trainer.max_epochs=4", "--price", "7200")
    found, shown = predicted(capsys, *words)["predicted"], output(capsys, *words)
    cost = f"cost {found['cost']:.3g} for the run, {found['cost'] / 4:.3g} an epoch"
    assert f"{cost}; in the currency of the price, 7200 an hour" in shown
    assert re.search(r"energy at most [\d.e-]+ kWh for the run, of the board's 700 W", shown)


def test_a_largest_batch_beyond_the_data_set_says_how_many_samples_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("model=mlp", "data.limit=128")
    told = "by memory alone; digits has 128"
    assert re.search(rf"largest micro-batch [\d,]+ samples {told}", output(capsys, *words, "device=h100"))
    both = output(capsys, *words, "device=h100,a100")
    assert both.count("largest batch: by memory alone, digits has 128 training samples") == 1
    monkeypatch.setitem(GPUS, "t4", replace(GPUS["t4"], memory_gb=0.612))
    assert "alone" not in output(capsys, "device=t4", "data.batch_size=64")


def test_a_model_named_by_its_size_says_why_it_has_another(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> list[str]:
        notes = make_plan(compose(["model=gpt2-124m", *words])).notes
        return [note for note in notes if "vocabulary" in note]

    why = "86M parameters, as shakespeare has a vocabulary of 256: the 124M of its name are with GPT-2's 50,257"
    assert told("data=shakespeare") == [why]
    assert not told("data=synthetic_tokens", "data.vocab=50257")
    assert not told("data=shakespeare", "model.layers=6")
    assert not told("data=shakespeare", "model=gpt")


def test_a_plan_for_another_machine_takes_torchao_as_installed_there_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpt.plan.facts._torchao", lambda: None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    words, told = ("model=mlp", "data.limit=256", "device=h100"), "with torchao 0.18 on that machine: pip install"
    plan = predicted(capsys, *words, "precision=fp8")
    assert any(told in note for note in plan["notes"])
    assert plan["predicted"]["step_s"] > 0
    assert told in output(capsys, *words, "precision=bf16,fp8")
    assert told not in output(capsys, *words, "precision=bf16,fp32")


def test_a_plan_shows_the_merged_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=mlp", "data.limit=64", "device=h100", "optimizer.lr=0.5")
    found = predicted(capsys, *words)["config"]
    assert found == yaml.safe_load(dump(compose(list(words))))
    assert (found["optimizer"]["lr"], found["data"]["limit"], found["model"]["width"]) == (0.5, 64, 256)
    shown = output(capsys, *words)
    assert shown.startswith("Merged configuration run device=h100")
    assert "optimizer name=adamw lr=0.5 weight_decay=0.01 fused=auto betas=[0.9,0.999]" in shown
    several = output(capsys, *words, "precision=bf16,fp32")
    assert "precision name=(as listed) backend=auto param=float32 compute=(as listed)" in several
    plans = predicted(capsys, *words, "precision=bf16,fp32")["plans"]
    assert [plan["config"]["precision"]["compute"] for plan in plans] == ["bfloat16", "float32"]


def test_a_price_is_told_for_each_of_several_precisions_and_why_one_is_emulated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("model=mlp", "data.limit=256", "device=a100", "precision=fp32,fp8", "--price", "3600")
    shown = output(capsys, *words)
    assert "fp8 is emulated: compute capability 8.0, float8_e4m3fn needs 8.9 or newer" in shown
    assert "in the currency of the price, 3600 an hour of each device" in shown
    page = tmp_path / "plan.html"
    fp32, fp8 = (plan["predicted"] for plan in predicted(capsys, *words, "--html", str(page))["plans"])
    assert "cost</th>" in page.read_text()
    assert fp32["cost"] == pytest.approx(fp32["run_s"])
    assert f"{fp32['cost']:.3g}" in shown
    assert fp8["step_s"] is None


def test_float32_is_once_as_fast_as_itself_though_measuring_it_twice_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = predicted(capsys, "model=mlp", "data.limit=256", "device=cpu", "precision=fp32,bf16")["plans"]
    assert found[0]["predicted"]["speedup_over_fp32"] == 1
    ours, theirs = (plan["predicted"]["phases_s"] for plan in found)
    assert found[1]["predicted"]["speedup_over_fp32"] == pytest.approx(sum(ours.values()) / sum(theirs.values()))


def test_a_report_holds_the_predicted_step_against_the_measured_one(tmp_path: Path) -> None:
    done = Done(tmp_path / "run", "model=mlp", "data.limit=256", "trainer.max_steps=12", "trainer.predict=true")
    speed = done.summary["speed"]
    assert speed["predicted_step_ms"] > 0
    shown = dict(section(read_run(tmp_path / "run")).facts)["predicted step"]
    assert f"{speed['predicted_step_ms'] / speed['step_p50_ms'] - 1:+.1%} of the measured median" in shown


def test_an_emulated_runs_step_is_not_predicted(tmp_path: Path) -> None:
    words = ("model=mlp", "data.limit=256", "trainer.max_steps=2", "trainer.predict=true", "precision=fp8")
    speed = Done(tmp_path / "run", *words).summary["speed"]
    assert speed["predicted_step_ms"] is None
    assert "no speed is claimed" in speed["predicted_step_ms_reason"]


@pytest.mark.parametrize("price", ["-3", "nan", "inf", "cheap"])
def test_what_is_no_price_is_refused(price: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "device=h100", "--price", price]) == 2
    assert f"--price: got `{price}`, want a number ≥ 0" in capsys.readouterr().err


def test_a_model_that_cant_be_traced_is_told_the_measured_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`mpt bench` compares precisions" in output(capsys, "model=mlp", "optimizer=lbfgs", "device=h100")


def test_one_sample_that_does_not_fit_is_told_by_how_much_and_what_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GPUS, "a100", replace(GPUS["a100"], memory_gb=0.62))
    shown = output(capsys, "model=mlp", "model.width=900", "device=a100", "precision=fp32")
    assert re.search(r"a batch of one does not fit: [\d.]+ MB too much", shown)
    assert "would fit: precision=bf16_true" in shown


def test_a_micro_batch_that_does_not_fit_is_split(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GPUS, "t4", replace(GPUS["t4"], memory_gb=0.612))
    shown = output(capsys, "device=t4", "data.batch_size=64")
    short = r"a micro-batch of 64 does not fit: data.batch_size=\d+ trainer.accumulate=\d+ keeps"
    assert re.search(short, shown)
    several = output(capsys, "device=t4,h100", "data.batch_size=64")
    assert re.search(r"t4 native [\d.]+ MB > 12 MB", several)
    assert re.search(f"t4: {short}", several)
    assert "h100: a micro-batch" not in several
    assert "each row against itself in that precision" in several
    assert "nothing was measured; kernels may fall short" in several


DEEP = ("model=gpt", "model.layers=3", "model.width=64", "model.context=128", "data=synthetic_tokens", "data.vocab=64")


def test_what_would_fit_begins_with_what_changes_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GPUS, "a100", replace(GPUS["a100"], memory_gb=0.6118))
    shown = output(capsys, *DEEP, "device=a100", "data.batch_size=1", "precision=fp32", "data.n=16")
    ways = re.findall(r"would fit: (\S+(?: \w+[.\w]*=\S+)*) \(([\d.]+) MB\)", shown)
    assert ways[0][0] == "trainer.checkpoint_activations=true"
    fitting = predicted(capsys, *DEEP, "device=a100", "data.batch_size=1", "data.n=16", "precision=fp32", ways[0][0])
    assert fitting["predicted"]["peak_bytes"] / 1e6 == pytest.approx(float(ways[0][1]), rel=0.01)
    assert fitting["predicted"]["largest_batch"] >= 1
    assert not any(way.startswith("trainer") and " " in way for way, _ in ways)


def test_a_micro_batch_that_fits_if_activations_are_computed_again_is_told_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GPUS, "a100", replace(GPUS["a100"], memory_gb=0.617))
    shown = output(capsys, *DEEP, "device=a100", "data.batch_size=6", "precision=fp32", "data.n=16")
    assert re.search(r"a micro-batch of 6 does not fit.*would fit as it is: trainer.checkpoint_activations=true", shown)


def test_a_model_that_fits_several_gpus_together_is_told_how_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GPUS, "a100", replace(GPUS["a100"], memory_gb=0.6178))
    words = (
        *DEEP[:2],
        "model.width=128",
        *DEEP[3:],
        "device=a100",
        "data.batch_size=16",
        "precision=fp32",
        "data.n=64",
    )
    shown = output(capsys, *words, "model.layers=4")
    found = re.search(r"would fit: distributed=fsdp distributed.nproc=(\d+) \(([\d.]+) MB in each", shown)
    assert found is not None, shown
    n = int(found[1])

    def each(n: int) -> dict[str, Any]:
        spread = ("distributed=fsdp", f"distributed.nproc={n}")
        return dict(predicted(capsys, *words, "model.layers=4", "data.batch_size=1", *spread)["predicted"])

    assert each(n)["peak_bytes"] / 1e6 == pytest.approx(float(found[2]), rel=0.01)
    assert each(n)["peak_bytes"] <= each(n)["limit_bytes"]
    assert n == 2 or each(n // 2)["peak_bytes"] > each(n // 2)["limit_bytes"]


def test_emulated_precisions_have_memory_against_float32_and_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=mlp", "data.limit=128", "device=cpu")
    shown = output(capsys, *words, "precision=fp8,mxfp8")
    peaks = [predicted(capsys, *words, f"precision={p}")["predicted"]["peak_bytes"] for p in ("fp32", "fp8", "mxfp8")]
    for name, peak in zip(("fp8", "mxfp8"), peaks[1:], strict=True):
        share = re.escape(f"{peak / peaks[0] - 1:+.0%}")
        assert re.search(rf"{name} emulated [\d.]+ MB {share} [\d,]+ n/a n/a n/a n/a", shown)
    assert "rounded operands, which emulation keeps in 16 or 32 bits" in shown


def test_a_policy_that_is_native_in_some_layers_and_emulated_in_others_has_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = predicted(capsys, "model=mlp", "device=b200", "precision=nvfp4", "data.limit=64")
    assert {row["how"] for row in found["rows"] if "e2m1" in row["compute"]} == {"native", "emulated"}
    assert found["predicted"]["peak_bytes"] > 0


def test_layers_that_stay_high_are_told_with_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "device=b200", "precision=fp8", "precision.min_weights=0")
    assert re.search(r"14: 10 outputs are no multiple of 16.*it stays in bfloat16", shown)


def test_streamed_data_are_timed_and_told_where_they_bind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from PIL import Image

    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (64, 64), (i, 2, 3)).save(tmp_path / split / label / f"{i}.png")
    words = ("data=image_folder", f"data.root={tmp_path}", "data.batch_size=8", "model=mlp", "model.width=8")
    shown = output(capsys, *words, "device=h100", "data.image_size=32")
    assert re.search(r"loader-bound at \d+% of the step: data.workers=\d+", shown)


def test_a_batch_that_is_to_be_found_is_sent_to_the_command_that_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "device=h100", "data.batch_size=auto"]) == 2
    told = capsys.readouterr().err
    assert "want an integer\n  hint: `mpt bench … data.batch_size=auto` alone finds it" in told
    assert "`mpt plan` tells the largest micro-batch" in told
