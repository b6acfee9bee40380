"""Rules over a whole configuration: each refuses what it should, names the key, and lets the rest pass."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpt import registry
from mpt.build import make_plan
from mpt.config import schema
from mpt.config._places import MIN_FREE_BYTES
from mpt.config.check import check, check_plan, require
from mpt.config.compose import compose
from mpt.config.data import idle_places
from mpt.config.fingerprint import fingerprint
from mpt.config.ranges import RANGES, SCALE, Range
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(*typed: str) -> dict[str, str]:
    """Text of each problem by where it is."""
    return {p.where: f"{p.what} | {p.hint}" for p in check(compose(list(typed)))}


@pytest.mark.parametrize(
    "typed",
    [
        [],
        *(
            [f"precision={p}"]
            for p in ("tf32", "bf16", "fp16", "bf16_true", "fp16_true", "fp16_master", "apex_o1", "apex_o2", "apex_o3")
        ),
        ["precision=fp16", "scaling=none"],  # allowed: the share of gradients that became zero is measured
        ["precision=fp16", "scaling=static", "scaling.init_scale=0.125"],
        ["precision=fp16", "scaling.min_scale=null", "scaling.max_scale=null"],
        ["precision=bf16", "optimizer=lbfgs"],
        ["optimizer=lbfgs", "model=gpt", "data=shakespeare", "trainer.clip_norm=null"],
        ["task=classification", "task.loss=bce"],
        ["task=classification", "task.loss=bce_with_logits", "precision=fp16"],
        ["trainer.max_steps=10", "schedule.warmup=10"],
        ["device=cuda:3"],
        ["data.std=[0.1]", "data.mean=[0.0]"],
        ["optimizer.lr=1.2e-38", "trainer.clip_norm=3.4e38", "optimizer.weight_decay=0", "trainer.max_time_s=1e39"],
    ],
)
def test_what_makes_sense_passes(typed: list[str]) -> None:
    assert found(*typed) == {}


@pytest.mark.parametrize(
    ("typed", "where", "text"),
    [
        *(
            (f"precision={p} scaling={s}", f"scaling={s} with precision={p}", "has the range of float32")
            for p in ("fp32", "tf32", "bf16", "bf16_true")
            for s in ("static", "dynamic")
        ),
        ("precision=fp16_true scaling=dynamic", "scaling=dynamic with precision=fp16_true", "can't be unscaled"),
        ("precision=fp16 optimizer=lbfgs", "optimizer=lbfgs with precision=fp16", "use precision=bf16 or fp32"),
        ("precision=fp16_true optimizer=lbfgs", "optimizer=lbfgs with precision=fp16_true", "L-BFGS"),
        ("optimizer=lbfgs optimizer.weight_decay=0.1", "optimizer.weight_decay", "has no weight decay"),
        ("optimizer=sgd optimizer.nesterov=true optimizer.momentum=0", "optimizer.nesterov", "without momentum"),
        ("precision=fp16 scaling.min_scale=8 scaling.max_scale=4", "scaling.min_scale", "above scaling.max_scale=4"),
        ("precision=fp16 scaling.init_scale=0.5", "scaling.init_scale", "below scaling.min_scale=1"),
        ("precision=fp16 scaling.init_scale=2e9", "scaling.init_scale", "raise the ceiling too"),
        ("precision=fp16 scaling=static scaling.init_scale=null", "scaling.init_scale", "starts from a number"),
        ("precision=fp16 scaling.hysteresis=null", "scaling.hysteresis", "scaling=dynamic needs a number"),
        ("precision=fp16 scaling=static scaling.growth_factor=2", "scaling.growth_factor", "has no use for"),
        ("precision=bf16 scaling.init_scale=8", "scaling.init_scale", "has no use for | leave it away"),
        ("precision=bf16 precision.param=float16", "precision.param", "want float32 or bfloat16"),
        ("precision=fp16 precision.master=float32", "precision.master", "but the weights are float32"),
        ("precision=fp16_true precision.master=float16", "precision.master", "want one of float32, split"),
        ("precision=fp16_true precision.moment=float32", "precision.moment", "updates float16 (precision.param)"),
        ("precision=fp16_master precision.master=split", "precision.master", "only bfloat16 is the high half"),
        ("precision=bf16 precision.master=split", "precision.master", "the weights are float32"),
        ("precision=bf16 precision.moment=int8 optimizer=lbfgs", "optimizer=lbfgs", "precision.moment=int8 needs a"),
        ("precision=bf16_split optimizer=rmsprop", "optimizer=rmsprop", "use optimizer=adam or adamw or sgd"),
        ("precision=bf16_split optimizer.fused=false", "optimizer.fused", "runs in the fused kernel"),
        ("precision=bf16_true precision.update_rounding=up", "precision.update_rounding", "nearest, stochastic"),
        (
            "precision=bf16_true precision.update_rounding=stochastic precision.master=float32",
            "precision.update_rounding",
            "the optimizer updates float32",
        ),
        ("precision=fp16_master precision.moment=float16", "precision.moment", "updates float32 (precision.master)"),
        ("precision=bf16 precision.moment=float16", "precision.moment", "float32, bfloat16 or int8"),
        ("optimizer=lbfgs model=gpt data=shakespeare", "trainer.clip_norm", "say trainer.clip_norm=null"),
        ("precision.compute=float17", "precision.compute", "want one of float32, tfloat32, bfloat16, float16"),
        ("precision.param=tfloat32", "precision.param", "want one of float32, bfloat16, float16"),
        ("precision.backend=natve", "precision.backend", "did you mean `native`?"),
        ("precision.keep=[norms]", "precision.keep", "did you mean `norm`?"),
        ("precision.layers=[{match:x,format:float33}]", "precision.layers[0].format", "did you mean `float32`"),
        ("precision.layers=[{match:'re:(',format:float32}]", "precision.layers[0].match", "is no regular expression"),
        ("precision=tf32 precision.layers=[{match:x,format:float32}]", "precision.layers[0]", "one switch"),
        *(
            (f"task=classification task.loss=bce precision={p}", "task.loss=bce", "use task.loss=bce_with_logits")
            for p in ("bf16", "fp16", "bf16_true", "fp16_true", "fp16_master")
        ),
        ("task=classification task.loss=mes", "task.loss", "did you mean `mse`?"),
        ("task.loss_weight=0", "task.loss_weight", "nothing would be trained"),
        *(
            (f"{key}={value}", key, "which float32 does not hold: want 1.2e-38 to 3.4e+38 in size | e.g.")
            for value in ("1e300", "1e39", "1e-300", "1e-39")
            for key in ("task.loss_weight", "optimizer.lr", "trainer.clip_norm", "optimizer.weight_decay", "data.std")
        ),
        ("precision=fp16 scaling=static scaling.init_scale=1e-39", "scaling.init_scale", "which float32 does not hold"),
        ("precision=fp16 scaling.growth_factor=1e39", "scaling.growth_factor", "which float32 does not hold"),
        ("task.loss_weight=-1e300", "task.loss_weight", "which float32 does not hold"),
        ("optimizer.lr=0", "optimizer.lr", "got 0, want a number > 0 | e.g. optimizer.lr=1e-3"),
        ("trainer.log_every=0", "trainer.log_every", "| e.g. trainer.log_every=1"),
        ("optimizer.eps=2**-20", "optimizer.eps", "| write 9.5367431640625e-07"),
        ("trainer.accumulate=0", "trainer.accumulate", "got 0, want a number ≥ 1"),
        ("trainer.patience=2 trainer.eval_every=0", "trainer.patience", "never acts"),
        ("trainer.eval_precision=fp16", "trainer.eval_precision", "want one of same, fp32"),
        ("trainer.ema_decay=1", "trainer.ema_decay", "got 1, want a number > 0 and < 1"),
        ("optimizer.lr=nan", "optimizer.lr", "got nan, want a finite number > 0"),
        ("optimizer.lr=inf", "optimizer.lr", "got inf, want a finite number > 0"),
        ("task.loss_weight=-inf", "task.loss_weight", "got -inf, want a finite number"),
        ("optimizer.betas=[0.9,1.0]", "optimizer.betas", "got 1, want a number ≥ 0 and < 1"),
        ("optimizer.betas=[0.9,-0.1]", "optimizer.betas", "got -0.1, want a number ≥ 0 and < 1"),
        *(
            (f"optimizer.betas={betas}", "optimizer.betas", "want two numbers ≥ 0 and < 1 | e.g. optimizer.betas=[0.9,")
            for betas in ("[0.9]", "[0.9,0.99,0.999]", "[]", "null", "[0.9,null]")
        ),
        ("optimizer.eps=small", "optimizer.eps", "got `small`, want a number ≥ 0"),
        ("data.std=[0.1,0]", "data.std", "got 0, want a number > 0"),
        ("data.mean=[nan]", "data.mean", "got nan, want a finite number"),
        ("data.on_error=ignore", "data.on_error", "want one of error, skip"),
        ("seed=-1", "seed", "got -1, want a number ≥ 0 and < 2^63"),
        ("trainer.max_epochs=0", "trainer.max_epochs", "got 0, want a number > 0"),
        ("device=gpu", "device", "did you mean `cuda`?"),
        ("device=h1000", "device", "did you mean `h100`? mpt list gpus names all"),
        ("device=qqqq", "device", "mpt list gpus names those that can be planned for"),
        ("device=cuda:x", "device", "want auto, cpu, cuda, cuda:N or mps"),
        ("resume=auto", "resume", "looks in run_dir, which is not given"),
        ("resume=nowhere", "resume", "`nowhere` does not exist"),
        ("init_from=nowhere", "init_from", "`nowhere` does not exist"),
        ("init_from=weights.pt", "init_from", "or any weights (.pt, .safetensors)"),
        ("resume=nowhere", "resume", "give a run folder or a checkpoint; paths are relative to"),
        ("resume=. init_from=.", "resume, init_from", "both are given"),
        ("run_dir=new resume=auto init_from=nowhere", "init_from", "`nowhere` does not exist"),
        ("numerics_every=10", "numerics_every", "say numerics=light or full"),
        ("logger=tensorbord", "logger", "did you mean `tensorboard`?"),
        ("distributed.nproc=2", "distributed.nproc", "one process"),
        ("distributed=fsdp distributed.nproc=4", "distributed", "distributed=fsdp distributed.nproc=4` predicts"),
        ("distributed=ddp", "distributed", "this version trains with one process"),
        ("distributed.link_gb_s=50", "distributed.link_gb_s", "got 50 with distributed=none"),
        ("distributed=fsdp trainer.channels_last=true", "trainer.channels_last", "contiguous weights only"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(typed: str, where: str, text: str) -> None:
    problems = found(*typed.split())
    assert text in problems.get(where, f"nothing at {where}: {problems}")


def test_a_plan_is_of_several_processes_whose_number_is_said() -> None:
    def planned(*typed: str) -> dict[str, str]:
        return {p.where: p.what for p in check_plan(compose(list(typed)))}

    assert planned("distributed=ddp", "distributed.nproc=8", "distributed.link_gb_s=50") == {}
    assert planned("distributed=fsdp") == {"distributed.nproc": "got null with distributed=fsdp"}
    assert planned("distributed.nproc=8") == {"distributed.nproc": "got 8 with distributed=none"}


def test_all_rules_speak_at_once() -> None:
    problems = found(
        *("precision=bf16", "scaling=dynamic", "optimizer.lr=nan", "device=gpu", "trainer.accumulate=0"),
        *("trainer.max_steps=3", "schedule.warmup=-9", "resume=nowhere"),
    )
    assert set(problems) == {
        *("optimizer.lr", "trainer.accumulate", "scaling=dynamic with precision=bf16"),
        *("schedule.warmup", "device", "resume"),
    }


def test_require_raises_with_everything() -> None:
    with pytest.raises(ConfigError, match="2 problems"):
        require(compose(["optimizer.lr=-1", "device=gpu"]))


def test_nothing_is_written_by_checking(tmp_path: Path) -> None:
    check(compose(["run_dir=outputs/mine", "checkpoint.dir=elsewhere"]))
    assert not any(tmp_path.iterdir())


def test_a_new_or_an_empty_run_folder_passes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert found("run_dir=new") == found("run_dir=empty") == {}


def test_a_folder_of_something_else_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    assert "is not empty and holds no run" in found("run_dir=photos")["run_dir"]
    assert "is not empty and holds no run" in found("run_dir=photos", "resume=auto")["run_dir"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file" in found("run_dir=file")["run_dir"]


def test_a_folder_that_holds_a_run_needs_resume(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "steps.jsonl").touch()
    assert "resume=auto goes on with it" in found("run_dir=old")["run_dir"]
    assert found("run_dir=old", "resume=auto") == {}


def test_a_run_begun_from_weights_goes_on_by_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    words = ("run_dir=mine", "resume=auto", "init_from=weights")
    assert found(*words) == {}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "steps.jsonl").touch()
    (tmp_path / "weights").rmdir()  # no longer needed where a run is there to go on with
    assert found(*words) == {}
    assert fingerprint(compose(["init_from=weights"])) == fingerprint(compose([]))


def test_a_new_run_does_not_put_its_checkpoints_among_anothers(tmp_path: Path) -> None:
    (tmp_path / "kept" / "update-000100").mkdir(parents=True)
    for words in (["run_dir=new"], ["run_dir=new", "resume=auto"], []):
        problem = found("checkpoint.dir=kept", *words)["checkpoint.dir"]
        assert "holds checkpoints of another run (update-000100)" in problem
    (tmp_path / "other").mkdir()
    assert "checkpoint.dir" in found("checkpoint.dir=kept", "run_dir=new", "resume=other")
    (tmp_path / "empty").mkdir()
    assert found("checkpoint.dir=empty", "run_dir=new") == {}


def test_a_run_that_goes_on_finds_its_checkpoints_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "kept" / "update-000100").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "steps.jsonl").touch()
    for words in (["run_dir=mine", "resume=auto"], ["resume=mine"], ["run_dir=mine", f"resume={tmp_path}/mine"]):
        assert found("checkpoint.dir=kept", *words) == {}
    for place in ("kept", "kept/update-000100"):
        assert found("checkpoint.dir=kept", "run_dir=new", f"resume={place}") == {}


def test_too_little_disk_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=MIN_FREE_BYTES - 1))
    problem = found("run_dir=a/b/c")["run_dir"]
    assert f"8 MiB are free at `{tmp_path}`, want 8 or more" in problem
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=MIN_FREE_BYTES))
    assert found("run_dir=a/b/c") == {}


def test_a_place_that_can_not_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "can't be written to" in found("checkpoint.dir=x")["checkpoint.dir"]


def test_a_yaml_that_names_no_code_is_told() -> None:
    cfg = compose([])
    cfg.model.name = "small_cn"
    assert [(p.where, "did you mean `small_cnn`?" in p.hint) for p in check(cfg)] == [("model.name", True)]


def test_a_missing_data_folder_is_found_by_the_data_set() -> None:
    problems = found("data=image_folder", "data.root=nowhere")
    assert list(problems) == ["data.root"]
    assert "nowhere" in problems["data.root"]


def _at(cfg: RunConfig, key: str, value: object) -> RunConfig:
    group, _, leaf = key.partition(".")
    if not leaf:
        return replace(cfg, **{group: value})
    return replace(cfg, **{group: replace(getattr(cfg, group), **{leaf: value})})


@pytest.mark.parametrize(
    "key", ["trainer.accumulate", "data.batch_size", "checkpoint.keep", "trainer.log_every", "seed"]
)
def test_the_ends_of_a_range_are_where_the_schema_says(key: str) -> None:
    least = RANGES[key].least
    assert least is not None
    cfg = compose([])
    assert check(_at(cfg, key, int(least))) == []
    assert [p.where for p in check(_at(cfg, key, int(least) - 1))] == [key]


def test_every_number_whose_meaning_names_an_end_is_held_to_it() -> None:
    """The meanings are the strings below the fields of schema.py: "…; ≥ 1."."""
    groups = {name.removesuffix("Config").lower(): name for name in vars(schema) if name.endswith("Config")}
    classes = {c.name: c for c in ast.parse(inspect.getsource(schema)).body if isinstance(c, ast.ClassDef)}
    told = {}
    for group, name in groups.items():
        for field, said in pairwise(classes[name].body):
            if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
                ends = re.findall(r"[;,] (≥|>) ([\d.]+)", str(said.value.value))
                key = ast.unparse(field.target)
                told.update({key if group == "run" else f"{group}.{key}": ends[0]} if ends else {})
    assert len(told) > 25
    for key, (sign, end) in told.items():
        kept = RANGES[key].least if sign == "≥" else RANGES[key].above
        assert kept is not None, key
        assert kept >= float(end), key


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        (Range(least=1), [1, 2, 1e30], [0.999, 0, -1]),
        (Range(above=0, below=1), [5e-324, 0.5, 1 - 2**-53], [0, 1, -0.0]),
        (SCALE, [2.0**-140, 2.0**127], [0.0, 2.0**127 * 1.001]),
    ],
)
def test_a_range_holds_its_inside_only(interval: Range, inside: list[float], outside: list[float]) -> None:
    assert all(interval.holds(x) for x in inside)
    assert not any(interval.holds(x) for x in outside)


@pytest.mark.parametrize(("cpus", "most"), [(1, 8), (2, 8), (16, 64), (None, 8)])
def test_far_more_workers_than_cpus_are_refused(monkeypatch: pytest.MonkeyPatch, cpus: int | None, most: int) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert found(f"data.workers={most}") == {}
    assert f"got {most + 1}, want at most {most} on this machine" in found(f"data.workers={most + 1}")["data.workers"]


@pytest.mark.parametrize("data", sorted(registry.names("data")))
def test_each_data_set_tells_the_places_that_it_does_not_look_at(data: str) -> None:
    cfg = compose(
        [f"data={data}", "data.root=mine", "data.download=true", *(["data.path=a:b"] if data == "custom" else [])],
    )
    reads = registry.load("data", data).READS
    told = idle_places(cfg.data)
    assert len(told) == len({"root", "download"} - set(reads))
    if "root" not in reads:
        assert told[0].startswith(f"without effect: data.root=mine; data={data} does not read it")
        assert told[0].endswith("your own images: data=image_folder data.root=mine")


def test_a_plan_tells_them() -> None:
    assert any("data.root=mine; data=digits" in note for note in make_plan(compose(["data.root=mine"])).notes)


def test_who_gives_a_text_to_another_data_set_is_told_which_one_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("To be, or not to be")
    told = found("model=gpt", "data=shakespeare", "data.root=mine.txt")
    assert set(told) == {"data.root"}
    assert told["data.root"].endswith("your own text: data=text data.root=mine.txt")


@pytest.mark.parametrize("data", ["shakespeare", "synthetic_tokens"])
def test_keys_of_images_are_refused_beside_tokens(data: str) -> None:
    assert found("model=gpt", f"data={data}") == {}
    problems = found("model=gpt", f"data={data}", "data.image_size=8", "data.mean=0.5", "data.std=0.5")
    assert set(problems) == {"data.image_size", "data.mean", "data.std"}
    assert all(text.endswith("its samples are tokens | leave it away") for text in problems.values())


@pytest.mark.parametrize("word", ["init_scale=0", "init_scale=-1", "init_scale=1e39", "init_scale=1e-46"])
def test_what_is_no_scale_is_not_advised_to_move_the_limits(word: str) -> None:
    problems = check(compose(["precision=fp16", f"scaling.{word}"]))
    assert [p.where for p in problems] == ["scaling.init_scale"]
    assert "scaling.m" not in problems[0].hint
