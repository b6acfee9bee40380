"""A run's own config.yaml: read back as it was, and changed only by words that fit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpt.config import saved
from mpt.config.compose import compose
from mpt.errors import ConfigError


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(saved.dump(compose(["precision=fp16", "precision.layers=[{match: head, format: float32}]"])))
    return path


def test_what_was_written_is_read_back(kept: Path) -> None:
    words = ["precision=fp16", "precision.layers=[{match: head, format: float32}]"]
    assert saved.load(kept) == compose(words)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("data.batch_size=0", "data.batch_size: got 0, want a number ≥ 1"),
        ("trainer.threads=-1", "trainer.threads: got -1, want a number ≥ 1"),
        ("trainer.threads=many", "trainer.threads: got `many`, want an integer or null\n  hint: the run had null"),
        ("data.eval_batch_size=abc", "data.eval_batch_size: got `abc`, want an integer or null"),
        ("data.eval_batch_size=[1]", "data.eval_batch_size: got `[1]`, want an integer or null"),
        ("data.batch_size=null", "data.batch_size: got `null`, want an integer"),
        ("data.batch_size=[", "data.batch_size: got `[`, want an integer"),
        ("data.batch_size=a: b", "data.batch_size: got `a: b`, want an integer"),
        ("trainer.eval_precision=fp16", "trainer.eval_precision: got `fp16`, want one of same, fp32"),
        ("data.download=maybe", "data.download: got `maybe`, want true or false"),
        ("data.mean=[a]", "data.mean: got `[a]`, want a list [a number, …] or null"),
        ("model.width=abc", "model.width: got `abc`, want an integer\n  hint: the run had `32`"),
        ("model.width=0", "model.width: got 0, want a number ≥ 1"),
        ("precision.keep={a: b}", "precision.keep: got `{a: b}`, want a list"),
        ("trainer.thread=1", "did you mean `trainer.threads`?"),
    ],
)
def test_a_word_that_does_not_fit_is_refused_by_its_key(word: str, text: str, kept: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        saved.load(kept, [word])
    assert text in str(refused.value)


def test_words_that_fit_change_the_configuration(kept: Path) -> None:
    words = ["data.eval_batch_size=7", "trainer.clip_norm=2", "data.mean=[0.5]", "device=cpu", "name=007"]
    cfg = saved.load(kept, [*words, "precision.layers=[{match: x, format: float32}]", "data.root=null"])
    assert (cfg.data.eval_batch_size, cfg.data.mean, cfg.device, cfg.name) == (7, [0.5], "cpu", "007")
    assert repr(cfg.trainer.clip_norm) == "2.0"
    assert [rule.match for rule in cfg.precision.layers] == ["x"]
    assert cfg.data.root is None


DEEP = "[" * 5000
BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{f'*{chr(97 + i)}, ' * 9}]\n" for i in range(9))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("seed: 0", "seed: [1]", "seed: got `[1]`, want an integer"),
        ("seed: 0", "seed: ${seed}", "is computed"),
        ("seed: 0", "name: ${oc.env:HOME}", "is computed"),
        ("model:\n", "model: 3\nmodelx:\n", "model: got `3`, want a mapping"),
        ("layers: []", "layers: [3]", "precision.layers: got `[3]`"),
        ("batch_size: 64", "batch_size: many", "data.batch_size: got `many`, want an integer"),
        ("  batch_size: 64\n", "", "data.batch_size: "),
        ("", BOMB, "refers to itself"),
        ("", DEEP, "levels deep"),
        ("", "#" * (2 << 20), "it has "),
        ("", "a: !!python/object/apply:os.system [true]\n", "python/object"),
    ],
)
def test_a_configuration_that_no_run_wrote_is_refused_by_key(old: str, new: str, told: str, tmp_path: Path) -> None:
    text = saved.dump(compose([]))
    assert old in text
    path = tmp_path / "config.yaml"
    path.write_text(text.replace(old, new, 1) if old else new + text)
    with pytest.raises(ConfigError) as refused:
        saved.load(path)
    assert told in str(refused.value)
