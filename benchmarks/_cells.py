"""What a row comes to: figures with their spread, the target, and whether it was met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mpt.bench.spread import MAX_NOISE, Spread, spread


@dataclass(frozen=True)
class Cell:
    """One line of a row.

    `figure` is what the target is about: `how` says from what (`ours / peer`, `ours - peer`, `ours`). `limit`
    None: told without a target. `what` says in a sentence what ran.
    """

    row: int
    name: str
    unit: str
    ours: Spread
    peer: Spread | None
    how: str
    figure: float
    figure_p10: float
    limit: float | None
    what: str

    @property
    def noise(self) -> float:
        """The larger noise of the two sides; 0 for counts, which are exact."""
        return max(self.ours.noise, self.peer.noise if self.peer else 0.0)

    @property
    def void(self) -> bool:
        """Too noisy to say anything."""
        return self.unit != "count" and self.noise > MAX_NOISE

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None without a target, or where the cell is void."""
        return None if self.limit is None or self.void else self.figure <= self.limit

    def line(self) -> str:
        """The cell as one line of text."""
        parts = [f"row {self.row} {self.name}: ours {self.ours.median:.4g} {self.unit}"]
        if self.peer:
            parts.append(f"peer {self.peer.median:.4g} {self.unit}")
        parts.append(f"{self.how} {self.figure:.4g} (p10 {self.figure_p10:.4g})")
        parts.append("no target" if self.limit is None else f"target <= {self.limit:g}: {self.verdict()}")
        parts.append(f"noise {self.noise:.1%}, n {self.ours.n}")
        return ", ".join(parts)

    def verdict(self) -> str:
        """met, missed, void or told."""
        if self.void:
            return "void (noise)"
        return {True: "met", False: "missed", None: "told"}[self.met]

    def to_json(self) -> dict[str, Any]:
        """Plain containers, with what is derived beside what was measured."""
        return {**asdict(self), "noise": self.noise, "void": self.void, "met": self.met, "verdict": self.verdict()}


Values = Sequence[float]


def ratio(row: int, name: str, ours: Values, peer: Values, limit: float | None, what: str, *, unit: str = "ms") -> Cell:
    """ours / peer, of medians and of p10."""
    a, b = spread(ours), spread(peer)
    return Cell(row, name, unit, a, b, "ours / peer", a.median / b.median, a.p10 / b.p10, limit, what)


def difference(row: int, name: str, ours: Values, peer: Values, limit: float | None, what: str, *, unit: str) -> Cell:
    """ours - peer, of medians and of p10."""
    a, b = spread(ours), spread(peer)
    return Cell(row, name, unit, a, b, "ours - peer", a.median - b.median, a.p10 - b.p10, limit, what)


def value(row: int, name: str, ours: Values, limit: float | None, what: str, *, unit: str) -> Cell:
    """A figure that is compared with nothing but its target."""
    a = spread(ours)
    return Cell(row, name, unit, a, None, "ours", a.median, a.p10, limit, what)
