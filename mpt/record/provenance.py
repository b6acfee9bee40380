"""Where a run came from: software, processor, settings (env.json), and the exact code (source.txt)."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import mpt
from mpt.record.cpu import cpu_info
from mpt.types import DeviceFacts

_PACKAGES = ("mpt", "torch", "torchvision", "timm", "hydra-core", "omegaconf", "numpy", "pillow", "rich", "torchao")
_PREFIXES = (
    *("ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GOMP_", "HYDRA_", "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_"),
    *("NCCL_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHONHASHSEED", "PYTORCH_", "RANK", "LOCAL_RANK", "TORCH"),
    *("TRITON_", "WORLD_SIZE"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "URL")
BEGUN = "begun by"
"""The line of source.txt for the first command of a run that others went on with."""
_DIFF_LIMIT = 1_000_000
_GIT_TIMEOUT_S = 10


def environment(facts: DeviceFacts, flags: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """env.json: `facts` of the device, torch's numeric `flags` as the run set them, its CPU `threads`."""
    return {
        "schema": "mpt.env/1",
        "device": asdict(facts),
        "cpu": {**asdict(cpu_info()), "threads": threads},
        "flags": dict(flags),
        "versions": versions(),
        "platform": platform.platform(),
        "variables": variables(os.environ),
    }


def versions() -> dict[str, str]:
    """Python, and each package that bears on a run and is installed."""
    found = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    return {"python": platform.python_version(), **found, "mpt": mpt.__version__}


@cache
def _version(name: str) -> str | None:
    """Of what this process has loaded or would load: once for all its runs."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change numbers or speed; none that looks like a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES) and not any(word in name.upper() for word in _SECRET)
    }


def begun_by(source: str) -> str:
    """The command that began the run of a source.txt, empty where it has none."""
    head = source.partition("\n\n")[0].splitlines()
    lines = {key: value for key, _, value in (line.partition(": ") for line in head)}
    return lines.get(BEGUN, lines.get("command", ""))


def source(argv: Sequence[str], folder: Path | None = None, before: str = "") -> str:
    """source.txt: the command, the package's version and hash, and the commit and changes of the user's tree.

    `folder` is where the command was typed; None: the working directory. `before` is the source.txt of a run that
    goes on: the command that began it stays.
    """
    folder = folder or Path.cwd()
    digest, own = _own(Path(mpt.__file__).parent)
    commit, changes = _state(folder)
    lines = [
        f"command: {shlex.join(argv)}",
        *(f"{BEGUN}: {command}" for command in [begun_by(before)] if command),
        f"folder: {folder}",
        f"python: {sys.executable}",
        f"mpt: {mpt.__version__}, sha256 of its files {digest}",
        f"mpt commit: {own or 'not in a git tree'}",
        f"commit: {commit or 'not in a git tree'}",
    ]
    return "\n".join(lines) + "\n" + changes


@cache
def _own(package: Path) -> tuple[str, str]:
    """Hash and commit of mpt: of what this process runs, so once for all its runs."""
    return package_hash(package), _state(package)[0]


def package_hash(folder: Path) -> str:
    """SHA-256 over names and contents of all Python and YAML files under the folder."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".yaml") and p.is_file()):
        data = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return total.hexdigest()


@cache
def _state(folder: Path) -> tuple[str, str]:
    """The commit of the git tree that the folder lies in and tracks, and what the tree has that its commit has not:
    a diff, then names of untracked files. Empty where there is no such tree.

    Looked at once: later runs of this process use the code that it has loaded.
    """
    if not _git(folder, "ls-files", "--", ".").strip():
        return "", ""
    lines = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=normal").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "")
    if not commit or commit == "(initial)":
        return "", ""
    diff = ""
    if any(line[0] in "12u" for line in lines if line):
        diff = _git(folder, "diff", "HEAD", "--no-color", "--no-ext-diff")
    if len(diff) > _DIFF_LIMIT:
        diff = f"{diff[:_DIFF_LIMIT]}\n(cut: {len(diff):,} characters in all)\n"
    untracked = "".join(f"{line[2:]}\n" for line in lines if line.startswith("? "))
    parts = (("changes", diff), ("untracked", untracked))
    return commit, "".join(f"\n--- {title} ---\n{text}" for title, text in parts if text.strip())


def _git(folder: Path, *words: str) -> str:
    """What git prints; empty where git is missing, slow, or finds no tree."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
