"""Whatever is asked for composes, or is refused with a message: never another exception."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpt.config.catalog import choices
from mpt.config.check import check
from mpt.config.compose import compose
from mpt.config.flat import flatten
from mpt.errors import MptError

GROUPS = ("model", "data", "task", "precision", "scaling", "optimizer", "schedule", "distributed")
ODD = st.sampled_from(
    ["null", "true", "-1", "0", "1", "3", "0.5", "1e30", "1e-40", "nan", "inf", "''", "[]", "[1,2]", "{}"]
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)

KEYS = sorted(k for k in flatten(compose([])) if "." in k)
"""Every dotted key of the default configuration."""


def words_of(group: str) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(choices(group, None))).map(lambda choice: f"{group}={choice}")


CHOSEN = st.lists(st.sampled_from(GROUPS), unique=True, max_size=5).flatmap(
    lambda groups: st.tuples(*map(words_of, groups)).map(list)
)
VALUED = st.lists(st.tuples(st.sampled_from(KEYS), ODD | TEXT).map("=".join), max_size=4)


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    left = os.listdir()
    os.chdir(before)
    assert left == [], "asking leaves nothing behind"


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(chosen=CHOSEN, valued=VALUED)
def test_g3_r20_every_choice_composes_or_is_refused_with_a_message(chosen: list[str], valued: list[str]) -> None:
    try:
        problems = check(compose([*chosen, *valued]))
    except MptError as error:
        problems = list(error.problems)
    for problem in problems:
        assert problem.where
        assert problem.what
        assert "Traceback" not in str(problem)


@settings(max_examples=15)
@given(words=st.lists(TEXT, min_size=1, max_size=3))
def test_g2_r20_any_words_at_all_are_composed_or_refused(words: list[str]) -> None:
    with suppress(MptError):
        compose(words)
