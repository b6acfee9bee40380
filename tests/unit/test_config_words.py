"""Words of the command line reach the configuration as they were typed."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from mpt.config.compose import words
from mpt.errors import ConfigError, Problem


def read_back(key: str, text: str, multirun: bool = False) -> object:
    line = words.quote_word(words.split(f"{key}={text}"), True, multirun)
    override = OverridesParser.create().parse_override(line)
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else override.value()


NOT_HYDRAS = (
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1)
    .filter(lambda s: s.lower() != "null")
    .filter(lambda s: not words._QUOTED.match(s) and not words._ESCAPED.search(s))
)


@given(NOT_HYDRAS)
def test_any_text_reads_back_unchanged(text: str) -> None:
    assert read_back("name", text) == text


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "007",
        "1E234",
        "true",
        "0x10",
        "a=b",
        "a,b",
        "a b",
        "ü",
        "/a/b=c,d ü/e",
        "[a",
        "{a",
        "it's",
        'say "x"',
        "\\",
    ],
)
def test_awkward_text_reads_back_unchanged(text: str) -> None:
    assert read_back("resume", text) == text


@pytest.mark.parametrize(
    ("typed", "meant"), [("'a b'", "a b"), ('"007"', "007"), (r"a\=b\,c", "a=b,c"), ("null", None)]
)
def test_text_that_is_quoted_for_hydra_already_is_left_to_hydra(typed: str, meant: str | None) -> None:
    assert read_back("name", typed) == meant


def test_a_comma_in_a_name_is_a_sweep_with_multirun_only() -> None:
    assert read_back("name", "1e5,007") == "1e5,007"
    assert read_back("name", "1e5,007", multirun=True) == ["'1e5'", "'007'"]
    assert read_back("name", "'a,b',c", multirun=True) == ["'a,b'", "'c'"]


def test_a_path_is_never_split_at_commas() -> None:
    assert read_back("data.root", "/a,b", multirun=True) == "/a,b"
    assert read_back("data.root", "choice(a,b)", multirun=True) == ["a", "b"]


def test_every_text_field_of_the_schema_is_known_as_text() -> None:
    found = words.text_keys()
    assert {"name", "run_dir", "resume", "device", "data.root", "checkpoint.dir", "precision.compute"} <= found
    assert not {"seed", "trainer.max_steps", "optimizer.lr", "logger", "debug.anomaly"} & found


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ("bf16", "is no key=value"),
        ("=3", "has no key before `=`"),
        ("name=", "got nothing after `=`"),
        ("~model", "keys can't be removed"),
    ],
)
def test_a_misshapen_word_is_told_apart(raw: str, what: str) -> None:
    problem = words.misshapen(words.split(raw), lambda choice: "precision" if choice == "bf16" else None)
    assert problem is not None
    assert problem.what == what
    if raw == "bf16":
        assert problem.hint == "did you mean `precision=bf16`?"


def test_a_word_that_hydra_can_not_read_comes_back_as_it_should_be_typed() -> None:
    word = words.split("trainer.max_steps=a=b")
    problem = words.parse(word.raw, word)
    assert isinstance(problem, Problem)
    assert problem.hint.endswith("""typed 'trainer.max_steps="a=b"'""")
    # and what it says is true: with that spelling Hydra reads the text
    override = words.parse('trainer.max_steps="a=b"', word)
    assert not isinstance(override, Problem)
    assert override.value() == "a=b"


def test_a_broken_list_comes_back_with_the_form_of_lists() -> None:
    word = words.split("data.mean=[a")
    problem = words.parse(word.raw, word)
    assert isinstance(problem, Problem)
    assert "data.mean=[a,b]" in problem.hint


def test_words_to_hydra_are_refused_in_a_plain_run() -> None:
    with pytest.raises(
        ConfigError, match=r"hydra\.run\.dir: does nothing in a plain run\n  hint: .*run_dir="
    ) as caught:
        words.refuse_hydra_words(["seed=1", "hydra.run.dir=x", "hydra/launcher=basic"])
    assert [p.where for p in caught.value.problems] == ["hydra.run.dir", "hydra/launcher"]


def test_a_value_that_the_shell_took_apart_is_one_problem_with_the_word_to_type() -> None:
    torn = "debug.inject=[{step: 5, module: a.b, kind: inf}, {step: 7, module: c, kind: nan}]"
    with pytest.raises(ConfigError) as refused:
        words.refuse_torn(["precision=fp16", *torn.split(" "), "trainer.max_steps=9"])
    assert refused.value.problems == (
        Problem("debug.inject", "got a value with spaces, which the shell took apart", f"quote it: '{torn}'"),
    )


@pytest.mark.parametrize("typed", [["a=[1,2]", "b=3"], ["a=[1, 2]"], ["a=[1", "b=2"], ["a={k: [1, 2]}", "c=d]"], []])
def test_values_in_one_word_and_those_that_never_close_are_left_alone(typed: list[str]) -> None:
    words.refuse_torn(typed)
