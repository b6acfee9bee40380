"""Hydra's own flags, lists and the doctor: what they print can be read by programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mpt.cli import main, names
from mpt.commands.list import GROUPS, KINDS
from mpt.config import catalog
from mpt.config.compose import compose
from mpt.config.flat import flatten
from mpt.config.gpus import GPUS
from mpt.errors import ExitCode
from mpt.formats.table import COMPUTE, FORMATS
from mpt.precision.capability import LOW


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def output(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 0
    return capsys.readouterr().out


def test_cfg_job_prints_what_a_run_would_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["precision=fp16", "name=007", "run_dir=/a/b=c,d ü", "scaling.init_scale=8", "model=gpt"]
    shown = yaml.safe_load(output(capsys, "train", "--cfg", "job", *typed))
    given = flatten(compose(typed))
    assert shown["name"] == "007"
    assert shown["run_dir"] == "/a/b=c,d ü"
    flat = {f"{g}.{k}": v for g, part in shown.items() if isinstance(part, dict) for k, v in part.items()}
    flat |= {key: value for key, value in shown.items() if not isinstance(value, dict)}
    assert flat == {key: value for key, value in given.items() if key not in ("model.choice", "recipe", "scaling.uses")}


def test_cfg_job_takes_a_part_and_resolves_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output(capsys, "train", "--cfg", "job", "--package", "model", "model.width=${seed}", "seed=5")
    assert shown.startswith("# @package model\n")
    assert "${seed}" in shown
    resolved = output(capsys, "train", "--cfg", "job", "-p", "model", "--resolve", "model.width=${seed}", "seed=5")
    assert yaml.safe_load(resolved)["width"] == 5


def test_a_part_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job", "--package", "modle"]) == 2
    assert "no `modle` in the configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--cfg", "hydra"], "\n  sweep:\n    dir: outputs/sweeps/"),
        (["--cfg", "all"], "\nseed: 0\n"),
        (["--info", "defaults", "model=gpt"], "model/gpt"),
        (["--info", "searchpath"], "pkg://hydra.conf"),
    ],
)
def test_hydras_own_views_work(args: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert text in output(capsys, "train", *args)
    assert not any(tmp_path.iterdir())


def test_hydras_help_about_itself_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hydra/launcher: " in output(capsys, "train", "--hydra-help")


def test_train_help_shows_choices_and_the_composed_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "train", "--help", "model=gpt", "name=a=b")
    assert "precision: " in out
    assert "name: a=b" in out
    assert "name: gpt" in out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mpt ", set(names())),
        ("mpt tr", {"train"}),
        ("mpt train prec", {"precision=", "precision."}),
        ("mpt train precision=bf16_", {"precision=bf16_split", "precision=bf16_true"}),
        ("mpt plan precision=bf16_", {"precision=bf16_split", "precision=bf16_true"}),
        ("mpt train model=gpt model.h", {"model.heads="}),
        ("mpt train trainer.max_s", {"trainer.max_steps="}),
        ("mpt list ", set(KINDS)),
        ("mpt list mo", {"models"}),
        ("mpt report ", set()),
        ("mpt train recipe=digits/small_cnn_fp", {"recipe=digits/small_cnn_fp16"}),
        ("/opt/train/mpt train precision=tf", {"precision=tf32"}),
    ],
)
def test_tab_completion_knows_commands_choices_and_keys(
    line: str, expected: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert set(output(capsys, "-sc", "query=bash").split()) == expected


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_installs_for_mpt(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = output(capsys, "--shell-completion", f"install={shell}")
    assert "-sc query=" in script
    assert "mpt" in script


@pytest.mark.parametrize("args", [[], ["install=tcsh"], ["instal=bash"]])
def test_completion_for_an_unknown_shell_is_refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-sc", *args]) == 2
    assert "SHELL is bash, fish or zsh" in capsys.readouterr().err


@pytest.mark.parametrize("kind", sorted(GROUPS))
def test_a_list_describes_every_choice(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(output(capsys, "list", kind, "--json"))
    assert document["schema"] == "mpt.list/1"
    entries = {entry["name"]: entry for entry in document["entries"]}
    assert {n: e["description"] for n, e in entries.items()} == catalog.choices(GROUPS[kind])
    assert all(entry["select"] == f"{GROUPS[kind]}={name}" for name, entry in entries.items())
    if kind == "models":
        assert {"resnet18", "vit_b_16"} <= set(document["torchvision"])


def test_the_list_of_models_names_torchvisions_for_people_too(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "list", "models")
    assert "model=small_cnn" in out
    assert "wide_resnet50_2" in out


def test_formats_are_listed_with_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(output(capsys, "list", "formats", "--json"))["entries"]}
    assert set(rows) == set(FORMATS)
    assert rows["float16"]["max"] == 65504.0
    assert rows["float16"]["min_subnormal"] == 2.0**-24
    assert rows["bfloat16"]["min_subnormal"] == 2.0**-133


def test_gpus_that_plans_know_are_listed_with_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(capsys, "list", "gpus", "--json"))["entries"]
    assert sorted(n for row in rows for n in (row["name"], *row["aliases"])) == sorted(GPUS)
    assert all(row["select"] == f"device={row['name']}" for row in rows)
    shown = output(capsys, "list", "gpus")
    assert "device=h100 or h100-sxm" in shown
    assert "NVIDIA H100 80GB HBM3" in shown
    assert {row["name"]: row["bfloat16"] for row in rows}["h100"] == 989


def test_the_users_folder_appears_in_lists(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "own" / "schedule").mkdir(parents=True)
    (tmp_path / "own" / "schedule" / "mine.yaml").write_text("# Mine.\nname: constant\n")
    assert "Mine." in output(capsys, "list", "schedules", "--config-dir", "own")


def test_list_without_a_kind_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "list")
    assert all(kind in out for kind in KINDS)


def test_the_doctor_reports_versions_formats_and_measured_speed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpt.commands.doctor.BUDGET_S", 0.0)
    document: dict[str, Any] = json.loads(output(capsys, "doctor", "--json", "device=cpu"))
    assert document["schema"] == "mpt.doctor/1"
    assert document["packages"]["torch"]
    (device,) = document["devices"]
    assert device["type"] == "cpu"
    formats = {row["format"]: row for row in device["formats"]}
    assert set(formats) == {*COMPUTE, *LOW}
    assert formats["float32"]["how"] == "native"
    assert formats["float32"]["matmul_tflops"] > 0
    assert formats["tfloat32"]["matmul_tflops"] is None
    assert all(row["reason"] for row in formats.values())


def test_the_doctor_says_when_a_device_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "device=cuda:99"]) == 2
    assert "device: got `cuda" in capsys.readouterr().err


def test_the_doctor_speaks_to_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpt.commands.doctor.BUDGET_S", 0.01)
    out = output(capsys, "doctor", "device=cpu")
    assert "hydra-core" in out
    assert "bfloat16" in out


def test_a_plan_for_an_absent_gpu_says_what_it_multiplies(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "plan", "precision=nvfp4", "device=b200", "trainer.max_steps=2")
    assert "native on NVIDIA B200" in out
    assert re.search(r"compute capability 10.0 (and torchao \S+ have linears of|has) nvfp4", " ".join(out.split()))
    out = output(capsys, "plan", "precision=nvfp4", "device=a100", "trainer.max_steps=2")
    assert "needs 10.0 or newer" in " ".join(out.split())


def test_a_plan_warns_of_floor_scales_and_of_a_policy_that_no_layer_takes(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "plan", "precision=mxfp4", "precision.scale_rule=floor", "device=cpu")
    assert "`floor` saturate the top of each block" in " ".join(out.split())
    out = " ".join(output(capsys, "plan", "precision=mxfp4", "model.width=8", "device=cpu").split())
    assert "no layer takes mxfp4, all is bfloat16" in out
    assert "emulated" not in out.partition("Predicted memory")[0]


def test_a_plan_tells_that_one_class_teaches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data=synthetic_images", "data.classes=1", "data.n=8", "data.image_size=8", "model=mlp", "device=cpu")
    notes = json.loads(output(capsys, "plan", *words, "--json"))["notes"]
    assert any("there is one class" in note for note in notes)


def test_a_plan_tells_which_keys_of_streamed_data_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    notes = json.loads(output(capsys, "plan", "data.workers=2", "data.on_error=skip", "device=cpu", "--json"))["notes"]
    told = "without effect: data.workers=2 and data.on_error=skip; digits is read whole before the run"
    assert told in notes
    assert not any("without effect" in n for n in json.loads(output(capsys, "plan", "device=cpu", "--json"))["notes"])


@pytest.mark.parametrize(("limit", "left"), [(97, 33), (64, 0), (50, 0), (160, 32), (161, 33), (321, 0), (700, 0)])
def test_a_plan_tells_how_much_of_an_epoch_its_batches_leave_out(
    capsys: pytest.CaptureFixture[str], limit: int, left: int
) -> None:
    """From a fifth on: 32 of 160 are told, 60 of 700 are not."""
    words = (f"data.limit={limit}", "data.batch_size=64", "model=mlp", "model.width=8", "device=cpu", "--json")
    told = [n for n in json.loads(output(capsys, "plan", *words))["notes"] if "left out" in n]
    sentence = f"{left} of {limit} training samples are left out of each epoch, others each time"
    assert told == ([f"{sentence}: a smaller data.batch_size than 64 leaves out fewer"] if left else [])


def test_every_key_is_listed_with_its_default_and_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(capsys, "list", "keys", "--json"))["entries"]
    named = {row["key"]: row for row in rows}
    filled_in = (".name", ".choice", ".uses")
    typed = {key.replace(".options.", ".") for key in flatten(compose([])) if not key.endswith(filled_in)}
    assert typed <= named.keys()
    assert named["trainer.log_every"]["default"] == "50"
    assert named["model.depth"]["choices"] == ["mlp"]
    workers = named["data.workers"]
    assert (workers["default"], workers["differs"]) == ("0", {"image_folder": "null"})
    for choice, size in named["data.batch_size"]["differs"].items():
        words = [f"data={choice}", *(["data.path=json:loads"] if choice == "custom" else [])]
        assert str(compose(words).data.batch_size) == size != named["data.batch_size"]["default"]
    assert [row["key"] for row in rows if not row["meaning"]] == []
    assert [row["key"] for row in rows if "None" in row["meaning"]] == []  # null is what is typed


def test_keys_are_found_by_a_part_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = " ".join(output(capsys, "list", "keys", "data.batch").split())
    assert re.search(r"Default: 128 with cifar10, .*; 32 with shakespeare, .*text", sizes)
    out = output(capsys, "list", "keys", "clip")
    assert "trainer.clip_norm" in out
    assert "trainer.max_steps" not in out
    assert main(["list", "keys", "clipnorm"]) == ExitCode.REFUSED
    assert "did you mean `clip_norm`?" in capsys.readouterr().err
