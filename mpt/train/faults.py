"""Failures that are not mpt's: the user's code, and memory that runs out."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch import nn

import mpt
from mpt.errors import ExitCode, first_line
from mpt.train.compiler import not_compiled
from mpt.train.known import known
from mpt.train.progress import Ending
from mpt.usercode import FAULTS

_OURS = str(Path(mpt.__file__).parent)
_LIBRARIES = ("site-packages", "dist-packages", str(Path(torch.__file__).parent))


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of a GPU or of the machine (torch has no exception of its own for a CPU)."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def line_of(error: BaseException) -> str:
    """`file:line` of the innermost frame that is neither a library's nor mpt's; empty where there is none."""
    chain = [e for e in (error.__cause__, error) if e is not None]
    frames = [frame for e in chain for frame in traceback.extract_tb(e.__traceback__)]
    theirs = [f for f in frames if not f.filename.startswith((_OURS, "<")) and not _library(f.filename)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


def module_of(error: BaseException, model: nn.Module) -> str:
    """The innermost module of the model that was being called: `4` (Linear); else the line that raised."""
    names = {id(module): name or "the model" for name, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if id(module) in names:
            found = f"module `{names[id(module)]}` ({type(module).__name__})"
        trace = trace.tb_next
    return found or "{0.filename}:{0.lineno}".format(traceback.extract_tb(error.__traceback__)[-1])


def ending_of(error: BaseException) -> Ending | None:
    """How a run ends that `error` stopped; None where it is a bug in mpt."""
    if out_of_memory(error):
        hint = "lower data.batch_size, and raise trainer.accumulate to keep the batch of an update"
        hint += "; or trainer.checkpoint_activations=true, which changes no number"
        return Ending("FAILED", ExitCode.FAULT, f"out of memory: {first_line(error)}; {hint}")
    if (problem := not_compiled(error)) is not None:
        return Ending("FAILED", ExitCode.FAULT, str(problem))
    if isinstance(error, torch.AcceleratorError):
        return Ending("FAILED", ExitCode.FAULT, f"the device failed: {error}. resume=auto goes on from what was saved")
    if isinstance(error, RuntimeError) and known(str(error)) and not line_of(error):
        shown = f"the model failed: {first_line(error)}; {known(str(error))}. resume=auto goes on"
        return Ending("FAILED", ExitCode.FAULT, shown)
    where = line_of(error) if isinstance(error, (*FAULTS, SystemExit, StopIteration)) and _from_outside(error) else ""
    if where:
        shown = "; ".join(filter(None, (f"{type(error).__name__}: {error}", known(str(error)))))
        return Ending("FAILED", ExitCode.FAULT, f"the user's code failed in {where}: {shown}. resume=auto goes on")
    return None


def _from_outside(error: BaseException) -> bool:
    """Whether the innermost frame that is no library's is not mpt's either; a mode that an op of theirs passed through
    on its way to torch, which refused it, does not count."""
    source = error.__cause__ or error
    every = traceback.extract_tb(source.__traceback__)
    if every and _library(every[-1].filename):
        modes = [i for i, f in enumerate(every) if f.name in ("__torch_dispatch__", "__torch_function__")]
        every = traceback.StackSummary.from_list(every[: modes[0]] if modes else every)
    frames = [f for f in every if not _library(f.filename)]
    return bool(frames) and not frames[-1].filename.startswith(_OURS)


def _library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARIES) or "/lib/python" in filename
