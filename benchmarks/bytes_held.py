"""Row 10: bytes that a run holds for each parameter, by exact count."""

from __future__ import annotations

from _cells import Cell, value
from _measure import Effort
from _row import main

from mpt.build import build
from mpt.config.compose import compose
from mpt.precision.switches import flags
from mpt.train.engine import make_engine

LIMIT = 14.0
NET = ("model=gpt", "data=shakespeare", "model.width=256", "data.batch_size=2", "optimizer=adamw", "device=cpu")
POLICIES: dict[str, tuple[str, ...]] = {
    "split masters": ("precision=bf16_split",),
    "float32 masters": ("precision=bf16_true", "precision.master=float32", "precision.moment=float32"),
    "split masters, bfloat16 moments": ("precision=bf16_split", "precision.moment=bfloat16"),
}


def measure(effort: Effort) -> list[Cell]:
    """A cell for each policy; a count is the same each time."""
    return [cell(name, words) for name, words in POLICIES.items()]


def cell(name: str, words: tuple[str, ...]) -> Cell:
    what = (
        f"{' '.join(words)}, AdamW, GPT of width 256: weights, what masters are made of, gradients and moments of the "
        "weights that the policy stores in bfloat16, after a step, divided by their number"
    )
    limit = LIMIT if words == POLICIES["split masters"] else None
    return value(10, name, [bytes_for_each(words)] * 2, limit, what, unit="count")


def bytes_for_each(words: tuple[str, ...]) -> float:
    """Of the bfloat16 weights: norms, which are float32 in every policy, are left out."""
    run = build(compose([*NET, *words]))
    stepper, batches = make_engine(run).stepper, run.data.train(start=0)
    with flags(run.cfg.precision, run.plan.device):
        stepper([next(batches)])
    half = [w for w in run.policy.weights if str(w.dtype) == "torch.bfloat16"]
    kept = [w for w in run.policy.weights if str(w.dtype) == "torch.float32"]
    held = {id(t): t for t in (*run.policy.weights, *run.policy.held.stored(), *run.optimizer.state_tensors())}
    slopes = [t.grad for t in {id(t): t for t in (*run.policy.weights, *run.policy.masters)}.values()]
    total = sum(t.numel() * t.element_size() for t in (*held.values(), *(g for g in slopes if g is not None)))
    moment = 2 if run.cfg.precision.moment == "bfloat16" else 4
    others = sum(w.numel() for w in kept) * (4 + 4 + 2 * moment) + 4  # weight, gradient, moments; the count of updates
    return (total - others) / sum(w.numel() for w in half)


if __name__ == "__main__":
    main(measure, __doc__)
