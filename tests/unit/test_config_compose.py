"""Composition: values, types, choices, and all problems at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpt.config.compose import compose, composition, keys
from mpt.config.reference import reference
from mpt.config.schema import LayerRule
from mpt.errors import ConfigError


def problems(*typed: str, config_dir: Path | None = None) -> dict[str, str]:
    """Text of each problem by where it is."""
    with pytest.raises(ConfigError) as caught:
        compose(list(typed), None if config_dir is None else str(config_dir))
    return {p.where: f"{p.what} | {p.hint}" for p in caught.value.problems}


def test_the_defaults_are_a_small_cnn_on_digits_in_fp32() -> None:
    cfg = compose([])
    assert (cfg.model.choice, cfg.data.name, cfg.precision.name, cfg.optimizer.name) == (
        "small_cnn", "digits", "fp32", "adamw",
    )  # fmt: skip
    assert cfg.model.options == {"width": 32, "dropout": 0.1}
    assert cfg.trainer.max_steps is None
    assert cfg.optimizer.lr == 1e-3


def test_values_have_the_types_of_the_schema() -> None:
    cfg = compose(["trainer.max_epochs=2", "optimizer.lr=1", "seed=3", "trainer.compile=true", "data.mean=[0,1]"])
    assert type(cfg.trainer.max_epochs) is float
    assert type(cfg.optimizer.lr) is float
    assert cfg.seed == 3
    assert cfg.trainer.compile is True
    assert cfg.data.mean == [0.0, 1.0]


@pytest.mark.parametrize(("typed", "number"), [("1e-30", 1e-30), ("0.5", 0.5), ("1", 1.0)])
def test_one_number_where_a_list_of_numbers_is_wanted_is_a_list_of_one(typed: str, number: float) -> None:
    assert compose([f"data.std={typed}"]).data.std == [number]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("scaling.init_scale=2**24", "write 16777216"),
        ("optimizer.lr=1/8", "write 0.125"),
        ("optimizer.lr=1/0", ""),
        ("optimizer.lr=9**9999", ""),
        ("optimizer.lr=fast", ""),
    ],
)
def test_a_sum_is_not_done_but_its_result_is_told(typed: str, hint: str) -> None:
    found = problems("precision=fp16", typed)[typed.partition("=")[0]]
    assert "want a number" in found
    assert found.endswith(f"| {hint}")


@pytest.mark.parametrize("text", ["1e5", "007", "true", "a=b", "a,b", "/x/y=1,2 ü/z"])
def test_text_keys_keep_what_was_typed(text: str) -> None:
    cfg = compose([f"name={text}", f"resume={text}", f"data.root={text}", "model=custom", f"model.path={text}"])
    assert (cfg.name, cfg.resume, cfg.data.root, cfg.model.options["path"]) == (text,) * 4


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    cfg = compose(["run_dir=~/runs", "data.root=~/photos", "name=~/me"])
    assert (cfg.run_dir, cfg.data.root, cfg.name) == ("/home/me/runs", "/home/me/photos", "~/me")


def test_words_that_look_like_booleans_stay_words() -> None:
    assert compose(["optimizer.fused=true"]).optimizer.fused == "true"
    assert compose(["trainer.channels_last=false"]).trainer.channels_last == "false"


def test_rules_by_layer_become_dataclasses() -> None:
    cfg = compose(['precision.layers=[{match: "head.*", format: float32}]'])
    assert cfg.precision.layers == [LayerRule("head.*", "float32")]


def test_one_word_stands_for_a_list_of_one() -> None:
    assert compose(["logger=tensorboard"]).logger == ["tensorboard"]


def test_keys_inside_a_mapping_are_the_users_own() -> None:
    cfg = compose(["model=custom", "model.path=a:b", "model.kwargs.width=3", "model.kwargs.deep.x=y"])
    assert cfg.model.options["kwargs"] == {"width": 3, "deep": {"x": "y"}}


@pytest.mark.parametrize("group", ["model", "data"])
def test_keys_of_ones_own_are_typed_as_a_mapping_too(group: str) -> None:
    cfg = compose([f"{group}=custom", f"{group}.path=a:b", f"{group}.kwargs={{width: 3, deep: {{x: [y]}}}}"])
    assert getattr(cfg, group).options["kwargs"] == {"width": 3, "deep": {"x": ["y"]}}


def test_interpolations_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_TEST_STEPS", "7")
    cfg = compose(["trainer.max_steps=${oc.env:MPT_TEST_STEPS}", "name=run-${seed}", "seed=5"])
    assert (cfg.trainer.max_steps, cfg.name) == (7, "run-5")


@pytest.mark.parametrize(
    ("precision", "strategy", "init"),
    [
        ("fp16", "dynamic", 65536.0),
        ("fp16_master", "dynamic", 65536.0),
        ("bf16", "none", None),
        ("fp16_true", "none", None),
    ],
)
def test_scaling_auto_becomes_the_policys_strategy(precision: str, strategy: str, init: float | None) -> None:
    cfg = compose([f"precision={precision}"])
    assert (cfg.scaling.name, cfg.scaling.init_scale) == (strategy, init)


def test_values_given_with_scaling_auto_lie_over_the_strategys_own() -> None:
    s = compose(["precision=fp16", "scaling=auto", "scaling.init_scale=1024"]).scaling
    assert (s.name, s.init_scale, s.growth_interval, s.max_scale) == ("dynamic", 1024.0, 2000, 2.0**24)


def test_another_strategy_can_stand_for_auto() -> None:
    assert compose(["precision=fp16", "precision.scaling=static"]).scaling.init_scale == 1024.0
    assert "did you mean `dynamic`" in problems("precision.scaling=dynamc")["precision.scaling"]


def test_an_alias_is_the_policy_under_another_name() -> None:
    assert compose(["precision=apex_o2"]).precision == compose(["precision=fp16_master"]).precision


@pytest.mark.parametrize(
    ("typed", "where", "text"),
    [
        ("precison=bf16", "precison", "no such key or group | did you mean `precision`?"),
        ("modle=gpt", "modle", "no such key or group | did you mean `model`?"),
        ("precision=bf61", "precision", "got `bf61` | did you mean `bf16`?"),
        ("precision=BF16", "precision", "got `BF16` | did you mean `bf16`?"),
        ("precision=16", "precision", "got `16` | did you mean `fp16` or `bf16`?"),
        ("precision='16'", "precision", "got `16` | did you mean `fp16` or `bf16`?"),
        ("precision=32", "precision", "got `32` | did you mean `fp32`?"),
        ("trainer.max_stepz=3", "trainer.max_stepz", "no such key | did you mean `trainer.max_steps`?"),
        ("max_steps=3", "max_steps", "no such key | did you mean `trainer.max_steps`?"),
        ("epochs=2", "epochs", "no such key | did you mean `trainer.max_epochs`?"),
        ("trainer.epochs=2", "trainer.epochs", "no such key | did you mean `trainer.max_epochs`?"),
        ("steps=2", "steps", "no such key | did you mean `trainer.max_steps`?"),
        ("workers=2", "workers", "no such key | did you mean `data.workers`?"),
        ("num_workers=2", "num_workers", "no such key | did you mean `data.workers`?"),
        ("batch=2", "batch", "no such key | did you mean `data.batch_size`?"),
        ("learning_rate=2", "learning_rate", "no such key | did you mean `optimizer.lr`?"),
        ("lr=3", "lr", "no such key | did you mean `optimizer.lr`?"),
        ("+lr=3", "lr", "no such key | did you mean `optimizer.lr`?"),
        ("optimizer.momentum=0.9", "optimizer.momentum", "with optimizer=adamw | it belongs to optimizer=rmsprop or"),
        ("task.loss=bce", "task.loss", "no such key with task=auto | it belongs to task=classification"),
        ("model.name=gpt", "model.name", "is set by the choice | write model=gpt"),
        ("bf16", "bf16", "is no key=value | did you mean `precision=bf16`?"),
        ("precision=fp32,bf16", "precision", "got `fp32,bf16` | a comma list is a sweep: add -m"),
        ("seed=1,2", "seed", "got `1,2` | a comma list is a sweep: add -m"),
        ("trainer.max_steps=x", "trainer.max_steps", "got `x`, want an integer or null"),
        ("trainer.max_steps=1e3", "trainer.max_steps", "got `1000.0`, want an integer or null | write 1000"),
        ("trainer.accumulate=null", "trainer.accumulate", "got null, want an integer"),
        ("trainer.accumulate=true", "trainer.accumulate", "got `true`, want an integer"),
        ("trainer.max_steps=[1]", "trainer.max_steps", "got `[1]`, want an integer or null"),
        ("trainer.max_steps.x=1", "trainer.max_steps.x", "no such key"),
        ("model.width=wide", "model.width", "got `wide`, want an integer"),
        ("optimizer.betas=0.9", "optimizer.betas", "got `0.9`, want a list like [0.9, 0.999]"),
        ("precision.layers=x", "precision.layers", "want a list of {match: …, format: …, type: …"),
        ("precision.layers=[{mach: x, format: fp32}]", "precision.layers[0].mach", "key | did you mean `match`?"),
        ("precision.layers=[{match: x}]", "precision.layers[0].format", "is missing | give all of match, format"),
        ("name=${nothing.here}", "name", "`${nothing.here}` can't be resolved"),
        ("model=torchvision", "model.arch", "has no value | it must be given: model.arch=…"),
        ("recipe=digits/nothing", "recipe", "got `digits/nothing`"),
        ("plugins=[mpt_no_such_plugin]", "plugins", "`mpt_no_such_plugin` can't be imported"),
    ],
)  # fmt: skip
def test_a_mistake_gets_the_key_and_a_next_move(typed: str, where: str, text: str) -> None:
    found = problems(typed)
    assert list(found) == [where]
    assert text in found[where]


def test_all_problems_come_at_once_and_in_the_order_of_the_words() -> None:
    found = problems(
        "trainer.max_stepz=3", "precision=bf61", "optimizer.lr=-1", "modle=x", "seed=y", "model=torchvision"
    )
    assert list(found) == ["trainer.max_stepz", "precision", "optimizer.lr", "modle", "seed", "model.arch"]


def test_the_message_counts_its_problems() -> None:
    with pytest.raises(ConfigError, match=r"^2 problems\n\nprecison: "):
        compose(["precison=x", "modle=y"])


def test_the_users_own_folder_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("# Wide.\nname: small_cnn\nwidth: 64\ndropout: 0.0\n")
    cfg = compose(["model=wide", "model.width=48"], str(tmp_path))
    assert (cfg.model.name, cfg.model.choice, cfg.model.options) == ("small_cnn", "wide", {"width": 48, "dropout": 0.0})
    assert "did you mean `wide`" in problems("model=wyde", config_dir=tmp_path)["model"]


def test_a_config_dir_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "is no folder" in problems(config_dir=tmp_path / "nothing")["--config-dir"]


def test_mistakes_in_a_users_yaml_are_found_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "mine.yaml").write_text("defaults: [default]\nmax_stepz: 3\nmax_steps: many\n")
    found = problems("trainer=mine", "seed=x", config_dir=tmp_path)
    assert set(found) == {"seed", "trainer.max_stepz", "trainer.max_steps"}


def test_a_number_in_yaml_where_text_belongs_has_lost_its_spelling(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("name: digits\nbatch_size: 8\nroot: 007\n")
    assert "put it in quotes" in problems("data=mine", config_dir=tmp_path)["data.root"]


def test_a_recipe_lies_under_the_command_line(tmp_path: Path) -> None:
    family = tmp_path / "recipe" / "mine"
    family.mkdir(parents=True)
    (family / "run.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /precision: fp16\n  - override /optimizer: sgd\n"
        "optimizer:\n  lr: 0.5\n  momentum: 0.8\ntrainer:\n  max_steps: 11\n"
    )
    cfg = compose(["recipe=mine/run", "trainer.max_steps=3", "optimizer.lr=0.25"], str(tmp_path))
    assert (cfg.recipe, cfg.precision.name, cfg.scaling.name) == ("mine/run", "fp16", "dynamic")
    assert (cfg.optimizer.lr, cfg.optimizer.options["momentum"], cfg.trainer.max_steps) == (0.25, 0.8, 3)


def test_a_recipe_with_a_key_that_is_not_there_is_refused(tmp_path: Path) -> None:
    family = tmp_path / "recipe" / "mine"
    family.mkdir(parents=True)
    (family / "run.yaml").write_text("# @package _global_\nmodel:\n  widht: 3\ntrainer:\n  max_stepz: 3\n")
    assert set(problems("recipe=mine/run", config_dir=tmp_path)) == {"model.widht", "trainer.max_stepz"}


def test_plugins_are_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpt_test_plugin.py").write_text("LOADED = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert compose(["plugins=[mpt_test_plugin]"]).plugins == ["mpt_test_plugin"]
    assert sys.modules.pop("mpt_test_plugin").LOADED


def test_the_yaml_form_holds_what_the_dataclasses_hold() -> None:
    made = composition(["precision=fp16", "scaling.init_scale=2", "model.width=8"])
    assert made.yaml.scaling.name == made.config.scaling.name == "dynamic"
    assert made.yaml.scaling.init_scale == made.config.scaling.init_scale == 2.0
    assert made.yaml.model.width == made.config.model.options["width"] == 8
    assert "hydra" not in made.yaml


def test_composition_leaves_the_folder_and_the_working_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compose(["precision=bf16"])
    assert Path.cwd() == tmp_path
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["name: [\n", "name: x\nname: y\n", "- a\n- b\n", "defaults: [nothing]\nname: x\n"])
def test_a_broken_yaml_of_the_user_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match="model"):
        compose(["model=mine"], str(tmp_path))


@pytest.mark.parametrize(
    ("typed", "strategy"),
    [
        (["precision=fp32", "precision.compute=float16"], "dynamic"),
        (["precision=bf16", "precision.compute=float16"], "dynamic"),
        (["precision=fp16", "precision.compute=bfloat16"], "none"),
        (["precision=fp16_true", "precision.master=float32"], "dynamic"),
        (["precision=fp16_master", "precision.master=null"], "none"),
        (["precision=fp16", "precision.param=float16"], "none"),
        (["precision=fp32", "precision.compute=float16", "precision.scaling=static"], "static"),
        (["precision=fp32", "precision.compute=float16", "scaling=none"], "none"),
        (["precision=fp16", "scaling=static", "precision.compute=float16"], "static"),
    ],
)
def test_scaling_auto_looks_at_the_formats_that_were_typed_over_the_policys(typed: list[str], strategy: str) -> None:
    assert compose(typed).scaling.name == strategy


def test_a_recipe_of_ones_own_sets_the_whole_configuration_or_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "recipe" / "me"
    folder.mkdir(parents=True)
    (folder / "good.yaml").write_text("# @package _global_\ntrainer:\n  max_steps: 10\n")
    (folder / "bad.yaml").write_text("trainer:\n  max_steps: 10\n")
    assert compose(["recipe=me/good"], str(tmp_path)).trainer.max_steps == 10
    with pytest.raises(ConfigError, match="begin it with the line `# @package _global_`"):
        compose(["recipe=me/bad"], str(tmp_path))


@pytest.mark.parametrize(
    ("file", "text", "words", "told"),
    [
        ("model/own.yaml", b"\xff\xfename: mlp", ["model=own"], r"own.yaml: is no text in UTF-8"),
        (
            "recipe/own.yaml", b"# @package _global_\ndefaults:\n  - override /model: mlpp\n", ["recipe=own"],
            r"model: got `mlpp` from the defaults of a YAML\n  hint: did you mean `mlp`\?",
        ),
        (
            "recipe/own.yaml", b"# @package _global_\ntrainer:\n  max_stepz: 2\n", ["recipe=own"],
            r"trainer.max_stepz: no such key, and a YAML of yours sets it\n  hint: did you mean `max_steps`",
        ),
        (
            "trainer/own.yaml", b"max_steps: 2\n", ["trainer=own"],
            r"(trainer.\w+: is in no YAML\n)+  hint: let your trainer YAML begin .*`defaults: \[default, _self_\]`$",
        ),
        (
            "optimizer/own.yaml", b"name: sgd\nlr: 1.0\n", ["optimizer=own"],
            r"optimizer.weight_decay: is in no YAML\n  hint: .*`defaults: \[sgd, _self_\]`",
        ),
    ],
)  # fmt: skip
def test_a_yaml_of_the_users_own_is_told_by_what_is_wrong_in_it(
    file: str, text: bytes, words: list[str], told: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=told):
        compose(words, str(tmp_path))


def test_an_empty_word_is_told_as_one() -> None:
    with pytest.raises(ConfigError, match="'': is an empty word"):
        compose(["", "seed=1"])


def test_every_word_of_other_programs_means_a_key_that_there_is() -> None:
    known = {key.key for key in reference()}
    assert set(keys._OTHER_WORDS.values()) <= known
    assert not set(keys._OTHER_WORDS) & {key.rsplit(".", 1)[-1] for key in known}
