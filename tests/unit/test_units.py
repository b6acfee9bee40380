"""Counts and lists as people write them."""

from __future__ import annotations

import pytest

from mpt.units import counted, epochs_text, listed


@pytest.mark.parametrize(("count", "told"), [(0, "0 losses"), (1, "1 loss"), (2, "2 losses"), (2000.0, "2,000 losses")])
def test_a_noun_agrees_with_its_count(count: float, told: str) -> None:
    assert counted(count, "loss", "losses") == told


def test_a_plural_ends_in_s_where_none_is_given() -> None:
    assert (counted(1, "step"), counted(3, "step")) == ("1 step", "3 steps")


def test_epochs_that_are_shown_as_one_are_one() -> None:
    assert [epochs_text(n) for n in (0.5, 1, 1.00001, 2.72727)] == ["0.5 epochs", "1 epoch", "1 epoch", "2.727 epochs"]


def test_names_are_joined_by_commas_and_one_and() -> None:
    assert [listed(n) for n in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
