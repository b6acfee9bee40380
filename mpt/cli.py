"""The only code that reads the command line: finds the subcommand, and turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import importlib
import io
import os
import pkgutil
import signal
import sys
import traceback
from typing import Protocol

import mpt
from mpt.errors import ConfigError, ExitCode, MptError, Problem, Stopped, first_line
from mpt.registry import closest

SIGPIPE = 141
"""128 + SIGPIPE's number, as shells report a program whose reader went away."""

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What writing to a redirected stdout meets on a disk; what else meets them knows its file."""

LATER = {
    "tune": "use `mpt sweep precision=fp32,bf16,fp16`",
}
"""Names that are reserved, and what does something of the kind today."""

HELP = """mpt {version}: mixed-precision training, with a record of what really happened

usage: mpt COMMAND …        mpt COMMAND --help shows more

{commands}

  --version                 print the version
  -sc install=bash          tab completion: eval "$(mpt -sc install=bash)"  (also fish, zsh)

examples:
  mpt train precision=bf16                              a small CNN on handwritten digits, a few seconds of CPU
  mpt train model=gpt data=shakespeare precision=fp16   a small transformer on text
  mpt plan model=resnet50 precision=fp16_master         what each layer will compute in, and why

exit codes: 0 finished, 2 can't be done (nothing was started), 3 diverged, 4 some jobs of a sweep failed,
            5 a fault of data, disk or device, 130/143 interrupted after a checkpoint, 1 a bug in mpt"""


class Command(Protocol):
    """What a file in mpt/commands/ has."""

    SUMMARY: str
    USAGE: str
    ORDER: int

    def run(self, args: list[str]) -> int: ...


def entry() -> None:
    """The installed program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without × and – shows their codes
    _leave_by_signal()
    sys.exit(main())


def _leave_by_signal() -> None:
    """Signals that ask a run to stop end the process with its own exit code, until a run takes them over."""

    def leave(number: int, frame: object) -> None:
        raise Stopped(int(ExitCode.SIGTERM))

    for name in ("SIGTERM", "SIGUSR1", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), leave)


def _open_what_is_closed() -> None:
    """Started without stdout or stderr (`>&-`), it goes nowhere; else the next file would get their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115  (as long as the process)


def main(argv: list[str] | None = None) -> int:
    """Runs one command line; the exit code."""
    args = sys.argv[1:] if argv is None else list(argv)
    _open_what_is_closed()
    try:
        code = dispatch(args)
        sys.stdout.flush()
        return code
    except MptError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return int(ExitCode.SIGINT)
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would fail again, and loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SIGPIPE
    except OSError as error:
        if error.errno not in _DISK or error.filename is not None:
            return _bug()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"can't write: {error.strerror}", file=sys.stderr)
        return int(ExitCode.FAULT)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            return _bug()
        problem = Problem(f"mpt {args[0]}", f"out of memory: {first_line(error)}", _LESS)
        print(problem, file=sys.stderr)
        return int(ExitCode.FAULT)
    except Exception:  # the outermost frame: whatever arrives here is a bug, and people need to know what to do
        return _bug()


_LESS = "lower data.batch_size, data.image_size or data.limit, take a smaller model, or end what else uses the machine"


def _out_of_memory(error: BaseException) -> bool:
    """Of the machine or a GPU; torch, which has an exception for a GPU's alone, need not be there to be asked."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


def _bug() -> int:
    """Tells of the error that is being handled."""
    traceback.print_exc()
    print("\nThis is a bug in mpt: please report it with the lines above.", file=sys.stderr)
    return int(ExitCode.BUG)


def dispatch(args: list[str]) -> int:
    """Runs the subcommand that the first word names."""
    match args:
        case []:
            print(overview(), file=sys.stderr)
            return int(ExitCode.REFUSED)
        case ["-h" | "--help" | "help", *_]:
            print(overview())
            return int(ExitCode.FINISHED)
        case ["-V" | "--version", *_]:
            print(f"mpt {mpt.__version__}")
            return int(ExitCode.FINISHED)
        case ["-sc" | "--shell-completion", *rest]:
            from mpt.commands._completion import complete

            return complete(rest, names())
    return command(args[0]).run(args[1:])


def names() -> list[str]:
    """The subcommands, in the overview's order."""
    package = importlib.import_module("mpt.commands")
    found = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]
    return sorted(found, key=lambda name: _load(name).ORDER)


def command(word: str) -> Command:
    """The subcommand of that name. Raises: ConfigError with the nearest names when there is none."""
    if word in LATER:
        raise ConfigError(Problem(f"mpt {word}", "is not in this version", LATER[word]))
    known = names()
    if word in known:
        return _load(word)
    if "=" in word or word.startswith("-"):
        raise ConfigError(Problem(word, "stands before a command", f"did you mean `mpt train {word}`?"))
    near = closest(word, known)
    hint = "did you mean " + " or ".join(f"`mpt {n}`" for n in near) + "?" if near else f"one of {', '.join(known)}"
    raise ConfigError(Problem(f"mpt {word}", "no such command", hint))


def overview() -> str:
    """What `mpt --help` prints."""
    lines = "\n".join(f"  {name:<11}{_load(name).SUMMARY}" for name in names())
    return HELP.format(version=mpt.__version__, commands=lines)


def _load(name: str) -> Command:
    module: Command = importlib.import_module(f"mpt.commands.{name}")
    return module


if __name__ == "__main__":
    entry()
