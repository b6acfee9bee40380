"""Lists on a command line: each combination is a configuration, as a sweep would make it, and all are checked."""

from __future__ import annotations

import re

import pytest

from mpt.config.check import check
from mpt.config.compose.lists import MOST, Line, combinations
from mpt.config.compose.sweep import plan_jobs
from mpt.errors import ConfigError


def lines(*words: str) -> list[Line]:
    return combinations(list(words), None, check)


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        lines(*words)
    return str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["precision=fp32,bf16", "trainer.compile=false,true", "trainer.max_steps=3"],
        ["data.batch_size=range(16,64,16)", "seed=1"],
        ["name='a,b',c", "optimizer=adamw,sgd"],
        ["precision=bf16", "precision=fp32,fp16", "model=mlp,small_cnn"],
        ["precision.layers=[]", "seed=choice(4,5)"],
        ["seed=1,2", "seed=7", "precision=fp32,bf16"],
    ],
    ids=" ".join,
)
def test_combinations_are_those_of_a_sweep_in_its_order(words: list[str]) -> None:
    assert [line.config for line in lines(*words)] == [job.config for job in plan_jobs(words, None)]


def test_a_line_is_named_by_what_sets_it_apart() -> None:
    found = lines("model=mlp", "precision=fp32,bf16", "precision.keep=[norm,softmax]", "name='a,b',c")
    assert [line.label for line in found] == [
        *("precision=fp32 name=a,b", "precision=fp32 name=c"),
        *("precision=bf16 name=a,b", "precision=bf16 name=c"),
    ]
    assert found[2].listed == {"precision": "bf16", "name": "a,b"}
    assert [line.label for line in lines("seed=1", "precision.keep=[norm,softmax]")] == ["as asked"]


def test_what_is_wrong_with_one_of_several_names_it_and_what_all_have_is_told_once() -> None:
    told = refused("precision=fp32,bf17", "trainer.accumulate=0")
    assert "precision: got `bf17` (with precision=bf17)" in told
    assert told.count("trainer.accumulate: got 0") == 1
    assert "scaling=dynamic with precision=bf16" in refused("precision=bf16,fp16", "scaling=dynamic")


def test_a_wrong_device_among_right_ones_is_the_only_one_that_is_told() -> None:
    told = refused("device=h100,a10x,b200")
    assert told.startswith("device: got `a10x`")
    assert "(with device='a10x')" not in told
    assert "(with device=a10x)" in told
    assert "did you mean `a10`?" in told
    assert not {"h100", "b200"} & set(re.findall(r"\w+", told))


def test_more_than_a_table_takes_is_refused_before_it_is_counted_out() -> None:
    assert f"want at most {MOST}" in refused("seed=range(0,1000000000000)")
    assert "seed, data.batch_size: got 72 combinations or more" in refused(
        "seed=range(0,8)", "data.batch_size=range(1,10)"
    )
    assert len(lines("seed=range(0,8)", "data.batch_size=range(1,9)")) == MOST


def test_a_samplers_interval_is_no_list() -> None:
    assert "optimizer.lr: `interval(0.1,1)` is no list" in refused("optimizer.lr=interval(0.1,1)")
