"""How images of one shape become what a model takes: channels, size, mean and deviation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mpt.config.schema import DataConfig
from mpt.errors import DataError, Problem
from mpt.types import InputSpec

# ITU-R BT.601 weights of red, green and blue in grey, those of PIL's `convert("L")`.
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class ImagePlan:
    """Shape and statistics after adaption; `mean` and `std` have one entry a channel."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def plan_images(
    cfg: DataConfig, wanted: InputSpec, native: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...]
) -> ImagePlan:
    """The model's channels and size where it names them, else the data's own, scaled up to the model's least size.

    Raises: DataError naming the key that does not fit.
    """
    channels = _channels(cfg, wanted, native[0])
    height, width = plan_size(cfg, wanted, native[1], native[2])
    return ImagePlan(
        (channels, height, width),
        _statistic("data.mean", cfg.mean, mean, channels),
        _statistic("data.std", cfg.std, std, channels),
    )


def _channels(cfg: DataConfig, wanted: InputSpec, native: int) -> int:
    channels = native if wanted.channels is None else wanted.channels
    if channels != native and {channels, native} != {1, 3}:
        what = f"`{cfg.name}` has {native} channels, but the model takes {channels}"
        raise DataError(Problem("model, data", what, "only 1 to 3 (repeated) and 3 to 1 (luma) are converted"))
    return channels


def plan_size(cfg: DataConfig, wanted: InputSpec, height: int, width: int) -> tuple[int, int]:
    """Height and width after resizing; `data.image_size` and the model's fixed size must not contradict."""
    asked, fixed = cfg.image_size, wanted.size
    if asked is not None and fixed is not None and asked != fixed:
        raise DataError(Problem("data.image_size", f"got {asked}, but the model takes {fixed} only", "leave it out"))
    if asked is not None and asked < wanted.min_size:
        what = f"got {asked}, but the model takes at least {wanted.min_size}"
        raise DataError(Problem("data.image_size", what, "leave it out, or choose a smaller model (model=small_cnn)"))
    side = asked if asked is not None else fixed
    if side is not None:
        return side, side
    grow = max(1.0, wanted.min_size / min(height, width))
    return round(height * grow), round(width * grow)


def _statistic(key: str, given: list[float] | None, own: tuple[float, ...], channels: int) -> tuple[float, ...]:
    values = own if given is None else tuple(given)
    if len(values) == channels:
        return values
    if len(values) == 1:
        return values * channels
    if given is None and channels == 1:
        return (sum(w * v for w, v in zip(LUMA, values, strict=True)),)
    raise DataError(Problem(key, f"got {len(values)} numbers for {channels} channels", "give one number, or one each"))


class Normalise:
    """Raw pixels to float32 images with the plan's channels, (value / scale - mean) / std, at their own size.

    Shapes: raw B,H,W,C of any dtype (values 0 … scale); the result is B,C,H,W with channels last in memory.
    """

    def __init__(self, plan: ImagePlan, scale: float, device: str | torch.device) -> None:
        self._scale, self._channels = scale, plan.shape[0]
        # Made once: an upload in a training step would make the host wait.
        self._mean, self._std, self._luma = (torch.tensor(v, device=device) for v in (plan.mean, plan.std, LUMA))

    def __call__(self, raw: Tensor) -> Tensor:
        x = raw.to(torch.float32, copy=True).div_(self._scale)
        if x.shape[-1] == 3 and self._channels == 1:
            x = (x * self._luma).sum(-1, keepdim=True)
        elif x.shape[-1] < self._channels:
            x = x.repeat(1, 1, 1, self._channels)
        batch, height, width, channels = x.shape
        # Whole rows and in place: a broadcast over three channels, and fresh memory for each result, take four times
        # as long on a CPU.
        rows = x.view(batch, height, width * channels)
        rows.sub_(self._mean.repeat(width)).div_(self._std.repeat(width))
        return x.permute(0, 3, 1, 2)


def resized(x: Tensor, plan: ImagePlan) -> Tensor:
    """x at the plan's height and width: bilinear, antialiased when it shrinks; x itself when it fits."""
    size = plan.shape[1:]
    if x.shape[2:] == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", antialias=True)


def finisher(plan: ImagePlan, scale: float, device: str | torch.device, *, last: bool) -> Callable[[Tensor], Tensor]:
    """What makes B,C,H,W float32 inputs of stacked B,H,W,C pixels, channels last in memory if `last`."""
    normalise = Normalise(plan, scale, device)

    def finish(raw: Tensor) -> Tensor:
        x = resized(normalise(raw), plan)
        return x if last else x.contiguous()

    return finish
