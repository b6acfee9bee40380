"""What would make a run fit into the memory of its device: tried word by word, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpt.config.schema import RunConfig
    from mpt.predict.prediction import Prediction

_AGAIN = "trainer.checkpoint_activations=true"
_SMALLER = (
    (_AGAIN,),
    ("precision=bf16",),
    ("precision=bf16_split",),
    ("precision=bf16_true",),
    ("precision=bf16_split", "precision.moment=int8"),
    ("optimizer=sgd", "optimizer.momentum=0"),
    (_AGAIN, "precision=bf16"),
    (_AGAIN, "precision=bf16_split"),
    (_AGAIN, "precision=bf16_split", "precision.moment=int8"),
)
"""What may make a model fit of which one sample does not: the first of them changes least, and no number at all."""


def ways(made: Prediction, composed: Callable[[tuple[str, ...]], RunConfig]) -> list[str]:
    """Words with which one sample would fit where it does not, or the micro-batch as it is where that one does not.

    `composed` gives the configuration with such words.
    """
    limit, largest = made.limit_bytes, made.largest_batch
    if not isinstance(limit, int) or not isinstance(largest, int) or largest >= made.plan.batch_size:
        return []
    if largest:
        return [told for _, told in _fitting(((_AGAIN,),), composed, limit, made.plan.batch_size)]
    return [told for _, told in _fitting(_SMALLER, composed, limit, 1)]


def _fitting(
    tried: tuple[tuple[str, ...], ...], composed: Callable[[tuple[str, ...]], RunConfig], limit_bytes: int, batch: int
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Those that fit, with their peak; none that only adds to one that does."""
    from mpt.build import make_plan
    from mpt.errors import MptError
    from mpt.predict.prediction import fits
    from mpt.units import bytes_text

    found: list[tuple[str, ...]] = []
    for way in tried:
        if any(set(way) > set(less) for less in found):
            continue
        try:
            cfg = composed(way)
            peak = fits(cfg, make_plan(cfg), batch)
        except MptError:
            continue
        if peak <= limit_bytes:
            found.append(way)
            yield way, f"{' '.join(way)} ({bytes_text(peak)})"
