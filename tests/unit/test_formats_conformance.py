"""The proof that `mpt doctor --conformance` gives: it holds here, and it would find a wrong bit."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from mpt.cli import main
from mpt.formats import conformance, format_of
from mpt.formats.conformance import codes_of, conform, nearest
from mpt.formats.table import FORMATS

NUMPY = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "fp16": np.float16,
}


@pytest.mark.parametrize("name", list(NUMPY))
def test_tables_hold_every_code(name: str) -> None:
    row = format_of(name)
    width = np.uint16 if row.bits == 16 else np.uint8
    codes = np.arange(2 ** (row.bits - int(row.signed)), dtype=width).view(NUMPY[name]).astype(np.float64)
    assert torch.equal(codes_of(row), torch.from_numpy(codes[np.isfinite(codes)]))


def test_nearest_breaks_ties_to_the_even_code() -> None:
    row = format_of("e2m1")
    x = torch.tensor([0.25, 0.75, 1.25, 2.5, 3.5, 5.0, -5.0, 7.0, torch.inf], dtype=torch.float64)
    assert nearest(x, row, codes_of(row)).tolist() == [0.0, 1.0, 1.0, 2.0, 4.0, 4.0, -4.0, 6.0, 6.0]
    e5m2 = format_of("e5m2")
    top = torch.tensor([61439.0, 61440.0], dtype=torch.float64)
    assert nearest(top, e5m2, codes_of(e5m2)).tolist() == [57344.0, torch.inf]


def test_this_machine_conforms_with_one_result_for_each_format() -> None:
    found = list(conform("cpu"))
    assert {row.format for row in found} >= {*FORMATS, "mxfp8", "mxfp6", "mxfp4", "nvfp4"}
    assert not [row for row in found if row.wrong]
    assert all(row.compared > 30_000 for row in found)


def test_one_wrong_bit_is_found_and_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = conformance.round_to

    def wrong(x: Tensor, row: object) -> Tensor:
        out = honest(x, row)  # type: ignore[arg-type]
        return torch.where(x == 0.3125, torch.full_like(x, 0.34375), out) if row is format_of("e4m3") else out

    monkeypatch.setattr(conformance, "round_to", wrong)
    assert main(["doctor", "--conformance", "--json", "device=cpu"]) == 5
    document = json.loads(capsys.readouterr().out)
    rows = {row["format"]: row for row in document["devices"][0]["formats"]}
    assert rows["float8_e4m3fn"]["wrong"] == 1
    assert rows["float8_e4m3fn"]["example"] == "0.3125 became 0.34375, not 0.3125"
    assert not any(row["wrong"] for name, row in rows.items() if name != "float8_e4m3fn")


def test_the_doctor_prints_a_line_for_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--conformance", "device=cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count("bit-exact") == len(FORMATS) + 6
