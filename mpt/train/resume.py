"""Where a run starts from: nothing, its own folder's newest valid checkpoint, or another run's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpt.checkpoint import CheckpointStore, find
from mpt.config.schema import RunConfig
from mpt.errors import CheckpointError, Problem
from mpt.record.folder import CHECKPOINTS, STEPS


@dataclass(frozen=True)
class Origin:
    """`reopen` is a run folder that goes on in place; else `history` is one whose lines are copied.

    `rejected` names newer checkpoints that were passed over, with the reason. `finished`: nothing is left to do.
    """

    reopen: Path | None = None
    checkpoint: Path | None = None
    history: Path | None = None
    rejected: tuple[tuple[Path, str], ...] = ()
    finished: bool = False


def checkpoint_dir(cfg: RunConfig, run_dir: Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(cfg.checkpoint.dir) if cfg.checkpoint.dir else run_dir / CHECKPOINTS


def origin(cfg: RunConfig) -> Origin:
    """What `resume` means for this configuration; touches the file system only to read.

    Raises: CheckpointError where `resume` names something that holds no checkpoint.
    """
    if cfg.resume is None:
        return Origin()
    if cfg.resume == "auto":
        return _in_place(cfg, Path(cfg.run_dir)) if cfg.run_dir and _is_run(Path(cfg.run_dir)) else Origin()
    path = Path(cfg.resume)
    if _is_run(path) and (cfg.run_dir is None or Path(cfg.run_dir).absolute() == path.absolute()):
        return _in_place(cfg, path)
    return _elsewhere(path)


def _is_run(path: Path) -> bool:
    return (path / STEPS).is_file()


def _in_place(cfg: RunConfig, run_dir: Path) -> Origin:
    if (run_dir / "DONE").is_file():
        return Origin(reopen=run_dir, finished=True)
    newest, rejected = CheckpointStore(checkpoint_dir(cfg, run_dir), keep=1).newest_valid()
    if newest is None and cfg.resume != "auto":
        raise CheckpointError(
            Problem(str(run_dir), "holds no valid checkpoint", "resume=auto starts such a run from the beginning"),
            *(Problem(str(path), why) for path, why in rejected),
        )
    return Origin(reopen=run_dir, checkpoint=newest, rejected=tuple(rejected))


def _elsewhere(path: Path) -> Origin:
    """A new folder that begins with the history of the run that the checkpoint lies in."""
    checkpoint = find(path)
    run_dir = checkpoint.parent.parent
    return Origin(checkpoint=checkpoint, history=run_dir if _is_run(run_dir) else None)
