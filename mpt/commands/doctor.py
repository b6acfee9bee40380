"""`mpt doctor`: versions, devices, which formats are native here, and what a matmul reaches."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import platform
import shutil
from typing import Any

from mpt.units import bytes_text

SUMMARY = "versions, devices, which number formats are native here, measured matmul speed"
ORDER = 8
USAGE = """mpt doctor [--json] [--conformance] [device=NAME]

Looks at every device of this machine, or at the one that device= names, and times a matrix product in
each format for about two seconds in all. --conformance compares roundings and block scales with tables of every
code instead, in some seconds; it exits 5 where one bit differs."""

PACKAGES = ("torch", "torchvision", "hydra-core", "omegaconf", "numpy", "rich", "timm", "torchao")
BUDGET_S = 2.0
"""For the timed products of all formats and devices together."""


def run(args: list[str]) -> int:
    """Prints the findings."""
    from mpt.commands import _flags

    flags, words = _flags.parse("mpt doctor", args, _add_flags)
    if flags.help:
        print(USAGE)
        return 0
    if flags.conformance:
        return _prove(_asked(words) or _present(), flags.json)
    document = examine(_asked(words))
    if flags.json:
        from mpt.commands._console import print_json

        print_json(document)
    else:
        _print(document)
    return 0


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--conformance", action="store_true")


def _prove(devices: list[str], as_json: bool) -> int:
    """Prints what was compared; FAULT where anything differs."""
    from mpt.commands import _conformance
    from mpt.commands._console import print_json
    from mpt.errors import ExitCode

    document = _conformance.examine(devices)
    if as_json:
        print_json(document)
    else:
        _conformance.show(document)
    return ExitCode.FINISHED if _conformance.holds(document) else ExitCode.FAULT


def _asked(words: list[str]) -> list[str]:
    from mpt.errors import ConfigError, Problem

    strays = [word for word in words if not word.startswith("device=")]
    if strays:
        raise ConfigError(
            *(Problem(f"mpt doctor {word}", "is not understood", USAGE.splitlines()[0]) for word in strays)
        )
    return [word.partition("=")[2] for word in words]


def examine(asked: list[str]) -> dict[str, Any]:
    """All findings as plain containers. Raises: ConfigError for a device that is not there."""
    import torch

    devices = asked or _present()
    return {
        "schema": "mpt.doctor/1",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "disk_free_bytes": shutil.disk_usage(os.getcwd()).free,
        "devices": [_device(name, BUDGET_S / len(devices)) for name in devices],
    }


def _present() -> list[str]:
    import torch

    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device(name: str, budget_s: float) -> dict[str, Any]:
    """Facts, formats and speeds of one device."""
    from dataclasses import asdict

    from mpt.formats.table import COMPUTE
    from mpt.plan.facts import probe
    from mpt.precision.capability import support
    from mpt.precision.routing import routed, suits
    from mpt.telemetry.matmul import ceiling_tflops

    facts = probe(name)
    rows = support(facts)
    with routed(suits(facts, math.inf)):  # the faster of the libraries that a run may take
        measured = {row.format: ceiling_tflops(row.format, facts, budget_s / len(COMPUTE)) for row in rows}
    return {**asdict(facts), "formats": [{**asdict(row), "matmul_tflops": measured[row.format]} for row in rows]}


def _print(document: dict[str, Any]) -> None:
    from mpt.commands._console import console, table

    out = console()
    about = table("", "")
    about.show_header = False
    about.add_row("Python", f"{document['python']} on {document['platform']}")
    for name, version in document["packages"].items():
        about.add_row(name, version or "not installed")
    about.add_row("CUDA build", document["cuda"] or "none: this torch knows no NVIDIA GPU")
    about.add_row("threads", f"{document['threads']} of {document['cores']} cores")
    about.add_row("free disk here", bytes_text(document["disk_free_bytes"]))
    out.print(about)
    for device in document["devices"]:
        out.print()
        out.print(_formats(device))


def _formats(device: dict[str, Any]) -> Any:
    from mpt.commands._console import table

    memory = f", {bytes_text(device['memory_bytes'])}" if device["memory_bytes"] else ""
    flags = f" ({', '.join(device['features'])})" if device["features"] else ""
    capability = ".".join(map(str, device["capability"])) if device["capability"] else ""
    kind = f"{device['type']}:{device['index']}, compute capability {capability}" if capability else device["type"]
    title = f"{kind}: {device['name']}{memory}{flags}"
    shown = table("format", "here", "matmul TFLOP/s", "why", title=title)
    for row in device["formats"]:
        speed = row["matmul_tflops"]
        shown.add_row(row["format"], row["how"], "not timed" if speed is None else f"{speed:.3g}", row["reason"])
    return shown
