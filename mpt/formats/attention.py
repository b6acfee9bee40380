"""How the two products of attention are quantised: query with key, probability with value. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpt.errors import PrecisionError, Problem
from mpt.formats.operand import HIGH, SAME, Operand, parse
from mpt.registry import did_you_mean

ROLES = ("query", "key", "probability", "value")


@dataclass(frozen=True, slots=True)
class Attention:
    """Operands by role; what is not named stays high."""

    query: Operand
    key: Operand
    probability: Operand
    value: Operand

    def operands(self) -> tuple[Operand, ...]:
        return self.query, self.key, self.probability, self.value

    @property
    def label(self) -> str:
        """All formats, as plan and audit name them."""
        return "+".join(dict.fromkeys(op.label for op in self.operands() if op.low))


def attention_of(given: Mapping[str, Any] | None, where: str = "precision.attention") -> Attention | None:
    """The operands that a policy or a rule names; None where all stay high.

    Raises: PrecisionError, with everything that is wrong.
    """
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise PrecisionError(Problem(where, f"got `{given}`", f"want {', '.join(f'{role}: …' for role in ROLES)}"))
    problems = [Problem(f"{where}.{k}", "no such operand", did_you_mean(k, ROLES)) for k in given if k not in ROLES]
    found = {}
    for role in ROLES:
        try:
            found[role] = _operand(str(given.get(role, HIGH)), f"{where}.{role}")
        except PrecisionError as error:
            problems += error.problems
    if problems:
        raise PrecisionError(*problems)
    attention = Attention(**found)
    return attention if attention.label else None


def _operand(text: str, where: str) -> Operand:
    op = parse(text, where)
    if op.format == SAME or op.scale == "delayed" or op.hadamard:
        raise PrecisionError(Problem(where, f"got `{text}`", "attention takes no `same`, delayed scale or hadamard"))
    return op
