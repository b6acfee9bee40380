"""The loss scale follows the distribution of the largest gradient, so that overflow has a chosen small probability."""

from __future__ import annotations

import torch
from torch import Tensor

from mpt.config.schema import ScalingConfig
from mpt.scaling._base import Scaler, limits


class LogMaxScaling(Scaler):
    """log2 of the largest unscaled gradient is taken as normal; its scale puts mean + z · deviation at 2^log_max.

    z is `overflow_std_dev` (3.09: one overflow in a thousand steps). The mean has decay `beta1`; the deviation comes
    of slower means with decay `beta2`; all are corrected for their start at 0, as Adam's are. A skipped step counts as
    a largest gradient of 2^log_max, one whose gradients are all 0 says nothing.
    Source: OpenSeq2Seq's open_seq2seq/optimizers/automatic_loss_scaler.py, LogMaxScaler. There a skipped step counts
    as a *logarithm* of 2^log_max = 65536, after which the scale stays at its floor for thousands of steps.
    """

    wants_largest = True

    def __init__(
        self,
        *,
        init_scale: float,
        min_scale: float,
        max_scale: float,
        log_max: float,
        beta1: float,
        beta2: float,
        overflow_std_dev: float,
        device: torch.device,
    ) -> None:
        self.strategy = "logmax"
        self.scale = torch.tensor(init_scale, dtype=torch.float32, device=device)
        # sums of the mean, slow mean and mean square, and the weights that they have gathered so far
        self.means = torch.zeros(3, dtype=torch.float32, device=device)
        self.weights = torch.zeros(3, dtype=torch.float32, device=device)
        self._decay = torch.tensor([beta1, beta2, beta2], dtype=torch.float32, device=device)
        self._log_max, self._deviations = log_max, overflow_std_dev
        self._min, self._max = min_scale, max_scale

    def update(self, found: Tensor, largest: Tensor | None = None) -> None:
        assert largest is not None, "wants_largest"
        overflow = found.bool()
        tells = overflow | (largest > 0)
        log = torch.where(overflow, self._log_max, torch.where(tells & ~overflow, largest, 1.0).log2())
        seen = torch.stack([log, log, log * log])
        for held, now in ((self.means, seen), (self.weights, torch.ones_like(seen))):
            held.copy_(torch.where(tells, torch.lerp(now, held, self._decay), held))
        mean, slow, square = (self.means / self.weights).unbind()
        cutoff = mean + self._deviations * (square - slow * slow).clamp(min=0).sqrt()
        wanted = torch.exp2(self._log_max - cutoff).clamp(self._min, self._max)
        self.scale.copy_(torch.where(tells, wanted, self.scale))

    def state_dict(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "means": self.means, "weights": self.weights}


def build(cfg: ScalingConfig, device: torch.device) -> LogMaxScaling:
    """Statistical scaling by cfg, whose values conf/scaling/logmax.yaml gives."""
    assert cfg.init_scale is not None, "conf/scaling/logmax.yaml gives init_scale"
    low, high = limits(cfg)
    return LogMaxScaling(init_scale=cfg.init_scale, min_scale=low, max_scale=high, **cfg.options, device=device)
