"""What would make a run fit into the memory of its device: tried word by word, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
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
_SPREAD = (("distributed=fsdp",), (_AGAIN, "distributed=fsdp"))
"""The same with the weights over several GPUs; the number of them is found."""


def ways(made: Prediction, composed: Callable[[tuple[str, ...]], RunConfig]) -> list[str]:
    """Words with which one sample would fit where it does not, or the micro-batch as it is where that one does not.

    `composed` gives the configuration with such words.
    """
    limit, largest = made.limit_bytes, made.largest_batch
    if not isinstance(limit, int) or not isinstance(largest, int) or largest >= made.plan.batch_size:
        return []
    tried, batch = (((_AGAIN,),), made.plan.batch_size) if largest else (_SMALLER, 1)
    found = dict(_fitting(tried, composed, limit, batch))
    if made.plan.device.type == "cuda" and made.plan.processes == 1:  # processes of one CPU share its memory anyway
        several = [way for way in _SPREAD if not any(set(way) > set(less) for less in found)]
        found |= islice(_over_several(several, composed, limit, batch), 1)
    return list(found.values())


def _fitting(
    tried: tuple[tuple[str, ...], ...], composed: Callable[[tuple[str, ...]], RunConfig], limit_bytes: int, batch: int
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Those that fit, with their peak; none that only adds to one that does."""
    from mpt.build import make_plan
    from mpt.errors import MptError
    from mpt.predict.fits import within
    from mpt.units import bytes_text

    found: list[tuple[str, ...]] = []
    for way in tried:
        if any(set(way) > set(less) for less in found):
            continue
        try:
            cfg = composed(way)
            peak = within(cfg, make_plan(cfg), batch, limit_bytes)
        except MptError:
            continue
        if peak is not None:
            found.append(way)
            yield way, f"{' '.join(way)} ({bytes_text(peak)})"


def _over_several(
    tried: Sequence[tuple[str, ...]], composed: Callable[[tuple[str, ...]], RunConfig], limit_bytes: int, batch: int
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Those that fit, with the fewest GPUs over which weights and what goes with them are spread."""
    from mpt.build import make_plan
    from mpt.errors import MptError
    from mpt.predict.fits import spread
    from mpt.units import bytes_text

    for way in tried:
        try:
            cfg = composed((*way, "distributed.nproc=2"))
            found = spread(cfg, make_plan(cfg), batch, limit_bytes)
        except MptError:
            continue
        if found is not None:
            each = f"{bytes_text(found[1])} in each; planned, not yet trained with"
            yield way, f"{' '.join(way)} distributed.nproc={found[0]} ({each})"
