"""Rules over a whole configuration: all are asked, and all problems come back together. No torch.

A rule is a function `(cfg) -> Iterator[Problem]` in RULES. What a rule needs to know of other packages
(a data set's files, kinds of ops, unsafe losses) comes from their parts that import no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mpt.config import _distributed
from mpt.config._combinations import COMBINATIONS
from mpt.config._debug import DEBUG
from mpt.config._graphs import GRAPHS
from mpt.config._low_bit import LOW_BIT
from mpt.config._places import PLACES
from mpt.config.flat import flatten
from mpt.config.guard import RULES as GUARD
from mpt.config.ranges import range_problems
from mpt.config.schema import RunConfig
from mpt.config.update import UPDATE
from mpt.errors import ConfigError, Problem

Rule = Callable[[RunConfig], Iterator[Problem]]
RULES: tuple[Rule, ...] = (*COMBINATIONS, *LOW_BIT, *UPDATE, *DEBUG, *GRAPHS, *GUARD, *PLACES, *_distributed.RULES)


def check(cfg: RunConfig) -> list[Problem]:
    """Everything that is wrong with `cfg`, for a run, and with the places that it names; writes nothing."""
    return _problems(cfg, _distributed.OF_RUNS)


def check_plan(cfg: RunConfig) -> list[Problem]:
    """The same for a plan, which may be of several processes."""
    return _problems(cfg, _distributed.OF_PLANS)


def _problems(cfg: RunConfig, more: tuple[Rule, ...]) -> list[Problem]:
    singles = range_problems(flatten(cfg))
    return singles + [problem for rule in (*RULES, *more) for problem in rule(cfg)]


def require(cfg: RunConfig) -> RunConfig:
    """cfg itself. Raises: ConfigError with all that check finds."""
    problems = check(cfg)
    if problems:
        raise ConfigError(*problems)
    return cfg
