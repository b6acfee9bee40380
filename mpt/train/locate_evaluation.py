"""Which evaluation samples have a loss that is not finite, and why."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mpt.build import Run
from mpt.precision.origins import Origins
from mpt.types import Batch


@torch.no_grad()
def locate_evaluation(run: Run, precision: str) -> dict[str, Any]:
    """The first evaluation batch whose loss is non-finite, with the weights as they are: its samples at fault, counted
    from 0 in the order of the evaluation, whether its inputs are finite, and the op at fault (`origin`); empty where
    all are finite now. Modules are left in the modes that they had."""
    modes = [(module, module.training) for module in run.model.modules()]
    run.model.eval()
    try:
        first = 0
        for batch in run.data.eval():
            with Origins(run.model) as origins:
                with run.policy.evaluate(precision):
                    output = run.model(batch.inputs)
                loss = run.task.loss_sum(output, batch)
            if not loss.isfinite():
                origin = origins.of(loss)
                return {
                    "samples": [first + i for i in _at_fault(run, output, batch)],
                    "inputs_finite": not batch.inputs.is_floating_point() or bool(batch.inputs.isfinite().all()),
                    "origin": None if origin is None else origin.document(),
                }
            first += len(batch.targets)
    finally:
        for module, training in modes:
            module.training = training
    return {}


def _at_fault(run: Run, output: Tensor, batch: Batch) -> list[int]:
    """Positions in the batch of the samples whose own loss is non-finite."""
    each = [
        run.task.loss_sum(output[i : i + 1], Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1]))
        for i in range(len(batch.targets))
    ]
    return [i for i, loss in enumerate(each) if not loss.isfinite()]
