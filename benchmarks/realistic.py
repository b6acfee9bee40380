"""Row 4: a step of the whole runner against an expert's loop, on nets of a realistic size."""

from __future__ import annotations

from collections.abc import Callable

from _cells import Cell, ratio
from _measure import Effort, per_step_ms
from _nets import SMALL_GPT, SMALL_GPT_TOLD
from _row import main
from _runner import expert, whole_run

from mpt.build import Run

LIMIT = 1.01
NETS = {
    "resnet18": (
        *("model=resnet18", "data=synthetic_images", "data.limit=256"),
        *("data.image_size=64", "data.batch_size=16"),
    ),
    "gpt": SMALL_GPT,
}
BLOCKS = {"resnet18": 4, "gpt": 3}
SIZES = {
    "resnet18": "ResNet-18, batch 16, 64x64, channels_last, synthetic images",
    "gpt": f"{SMALL_GPT_TOLD}, shakespeare",
}


def measure(effort: Effort) -> list[Cell]:
    """One cell for each net."""
    return [cell(name, words, effort) for name, words in NETS.items()]


def cell(name: str, words: tuple[str, ...], effort: Effort) -> Cell:
    """Runner and expert take turns of a few steps in one process."""
    times: list[float] = []
    block = BLOCKS[name]

    def peer(run: Run) -> Callable[[], object]:
        by_hand = expert(run, 40)
        return lambda: times.append(per_step_ms(by_hand.run, block))

    ours = whole_run([*words, "device=cpu"], block=block, blocks=effort.repeats, peer=peer)
    what = f"{SIZES[name]}, float32: whole loop of the runner / expert's loop as in row 1, torch's default threads"
    return ratio(4, name, ours, times[1 : 1 + len(ours)], LIMIT, what)


if __name__ == "__main__":
    main(measure, __doc__, repeats=30)
