"""Rows of repeated blocks in a plan: told once, and only where they are alike."""

from __future__ import annotations

from mpt.predict.alike import told_once


def rows(*names: str, kind: str = "Linear", rest: str = "1 ms") -> list[tuple[str, ...]]:
    return [(name, kind, rest) for name in names]


def test_blocks_that_are_alike_are_one_row_in_the_place_of_the_first() -> None:
    found = told_once([*rows("in"), *rows("blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b"), *rows("out")])
    assert [row[0] for row in found] == ["in", "blocks.0–1.a", "blocks.0–1.b", "out"]
    assert {row[1:] for row in found} == {("Linear", "1 ms")}


def test_a_block_that_differs_keeps_its_row() -> None:
    found = told_once([*rows("l.0.a", "l.1.a", "l.2.a", "l.10.a"), *rows("l.3.a", rest="2 ms"), *rows("l.4.a")])
    assert found == [("l.0–2,4,10.a", "Linear", "1 ms"), ("l.3.a", "Linear", "2 ms")]


def test_layers_of_a_flat_list_and_other_numbers_of_a_name_stay_apart() -> None:
    names = ["0", "2", "features.0", "features.3", "l1.conv", "l2.conv", "a.0.b.1.c", "a.0.b.2.c"]
    assert [row[0] for row in told_once(rows(*names))] == names


def test_what_lies_between_a_blocks_layers_is_told_of_all_blocks() -> None:
    assert told_once(rows("blocks.0", "blocks.1", kind="")) == [("blocks.0–1", "", "1 ms")]
