"""Skips with a reason where there is no CUDA device.

MPT_GPU_TESTS_ON=cpu runs what does not need one on the CPU: a check of the tests themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# cuBLAS is deterministic only with a fixed workspace, and reads this once, before its first call.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda_only: shows what only CUDA has")
    config.addinivalue_line("markers", "anywhere: runs without a CUDA device too")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked `gpu`, and skipped where what it needs is missing."""
    import torch

    from tests.gpu._gpu_kit import DEVICE

    found = torch.cuda.is_available()
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if DEVICE == "cuda" and not found and item.get_closest_marker("anywhere") is None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is False"))
        if DEVICE != "cuda" and item.get_closest_marker("cuda_only"):
            item.add_marker(pytest.mark.skip(reason=f"shows what only CUDA has; MPT_GPU_TESTS_ON={DEVICE}"))
