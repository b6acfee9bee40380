"""Every random state that a step may draw from, as tensors."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor


def seed_all(seed: int) -> None:
    """Python, numpy and torch (every device) start from `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture(device: torch.device) -> dict[str, Tensor]:
    """The states of Python, numpy, torch's CPU generator and that of `device`."""
    _, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    assert name == "MT19937", "numpy's global generator is always MT19937"
    state = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64).copy()),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "cpu": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore(state: dict[str, Tensor], device: torch.device) -> None:
    """The next draws are those that would have followed `capture`."""
    gauss = state["python_gauss"].tolist()
    random.setstate((3, tuple(state["python"].tolist()), gauss[0] if gauss else None))
    position, has_gauss, cached = state["numpy_rest"].tolist()
    keys = state["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"].cpu())
