"""A handful of rounds of the torture; hundreds are a program of their own (docs/reliability.md)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e._cli import ENV


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
def test_f1_f5_f6_f7_f12_r12_r13_runs_killed_at_random_moments_end_equal_to_unbroken_ones() -> None:
    command = [sys.executable, "-m", "tests.torture.kill_resume", "--seed", "3", "--kills", "2", "--precisions"]
    done = subprocess.run([*command, "fp16_master,mxfp8"], env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("every resumed run equal to the unbroken one")
