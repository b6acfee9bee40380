"""Where a run starts from: nothing, its own folder's newest valid checkpoint, or another run's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpt.checkpoint import CheckpointStore, find
from mpt.config import saved
from mpt.config.schema import RunConfig
from mpt.errors import CheckpointError, Problem
from mpt.record.folder import CHECKPOINTS, STEPS
from mpt.train.progress import TIME_RULE
from mpt.units import counted


@dataclass(frozen=True)
class Origin:
    """`reopen` is a run folder that goes on in place; else `history` is one whose lines are copied.

    `rejected` names newer checkpoints that were passed over, with the reason. `finished`: the run ended for good.
    `dropped`: recorded steps of a run that begins anew, since none of its checkpoints can be used.
    """

    reopen: Path | None = None
    checkpoint: Path | None = None
    history: Path | None = None
    rejected: tuple[tuple[Path, str], ...] = ()
    finished: bool = False
    dropped: int = 0

    def told(self) -> list[str]:
        """Sentences on checkpoints that were passed over, and on what is begun anew."""
        lines = [f"passed over {path}: {why}" for path, why in self.rejected]
        if self.dropped:
            what = f"{self.reopen} has no checkpoint to go on from: it begins anew"
            lines.append(f"{what}, and its record of {counted(self.dropped, 'step')} with it")
        return lines


def checkpoint_dir(cfg: RunConfig, run_dir: Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(cfg.checkpoint.dir) if cfg.checkpoint.dir else run_dir / CHECKPOINTS


def stored(path: Path) -> Path:
    """The checkpoint that `path` means; a run folder's lie where its own configuration says.

    Raises: CheckpointError where there is none that is valid.
    """
    if _is_run(path) and (path / "config.yaml").is_file():
        folder = checkpoint_dir(saved.load(path / "config.yaml"), path)
        if not CheckpointStore(folder, keep=1).newest_first():
            what = "is a run that saved no checkpoint: it was stopped before the first"
            raise CheckpointError(Problem(str(path), what, f"begin anew, with the words in {path / 'source.txt'}"))
        return find(folder)
    return find(path)


def origin(cfg: RunConfig) -> Origin:
    """What `resume` means for this configuration; touches the file system only to read.

    Raises: CheckpointError where `resume` names something that holds no checkpoint.
    """
    if cfg.resume is None:
        return Origin()
    if cfg.resume == "auto":
        return _in_place(cfg, Path(cfg.run_dir)) if cfg.run_dir and _is_run(Path(cfg.run_dir)) else Origin()
    path = Path(cfg.resume)
    if _is_run(path) and (cfg.run_dir is None or Path(cfg.run_dir).resolve() == path.resolve()):
        return _in_place(cfg, path)
    return _elsewhere(path)


def _is_run(path: Path) -> bool:
    return (path / STEPS).is_file()


def _in_place(cfg: RunConfig, run_dir: Path) -> Origin:
    folder = checkpoint_dir(cfg, run_dir)
    newest, rejected = CheckpointStore(folder, keep=1).newest_valid()
    if newest is None and not rejected:
        _refuse_elsewhere(run_dir, folder)
    if newest is None and cfg.resume != "auto":
        raise CheckpointError(
            Problem(str(run_dir), "holds no valid checkpoint", "resume=auto starts such a run from the beginning"),
            *(Problem(str(path), why) for path, why in rejected),
        )
    dropped = 0 if newest else _recorded(run_dir)
    return Origin(run_dir, newest, rejected=tuple(rejected), finished=_is_finished(run_dir), dropped=dropped)


def _refuse_elsewhere(run_dir: Path, folder: Path) -> None:
    """Raises: CheckpointError where the run's checkpoints lie in another folder than `folder`, by its own config."""
    if not (run_dir / "config.yaml").is_file():
        return
    own = checkpoint_dir(saved.load(run_dir / "config.yaml"), run_dir)
    if own.absolute() != folder.absolute() and CheckpointStore(own, keep=1).newest_first():
        what = f"holds no checkpoint: those of this run lie in {own}"
        raise CheckpointError(Problem(str(folder), what, f"give the run's own word: checkpoint.dir={own}"))


def _recorded(run_dir: Path) -> int:
    """Steps in the record."""
    with (run_dir / STEPS).open("rb") as file:
        return max(0, sum(1 for _ in file) - 1)


def _is_finished(run_dir: Path) -> bool:
    """Whether the run ended for good; one that ran out of trainer.max_time_s goes on with more of it."""
    marker = run_dir / "DONE"
    return marker.is_file() and not marker.read_text(errors="replace").startswith(TIME_RULE)


def _elsewhere(path: Path) -> Origin:
    """A new folder that begins with the history of the run that the checkpoint lies in."""
    checkpoint = stored(path)
    run_dir = path if _is_run(path) else checkpoint.parent.parent
    return Origin(checkpoint=checkpoint, history=run_dir if _is_run(run_dir) else None)
