"""Whether a model can be compiled here, and how one that can't is told."""

from __future__ import annotations

import re
import tempfile
import traceback

from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem, first_line
from mpt.plan.compiled import is_compiled
from mpt.plan.plan import Plan
from mpt.usercode import FAULTS

KEY = "trainer.compile"
AWAY = "leave trainer.compile away: the model then runs as it is"
_OF_COMPILERS = ("torch._dynamo.", "torch._functorch.", "torch._inductor.")
_AT_WORK = ("_dynamo/convert_frame.py", "_inductor/compile_fx.py")
"""Files of torch's with frames while it compiles; what is compiled runs without them."""
_EXPLANATION = re.compile(r"^ *Explanation: (.+)$", re.MULTILINE)
_USER_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_USER_CODE = "from user code:"
_LONG = 400
"""Characters: an explanation may go on with whole graphs."""


def require_compiler(cfg: RunConfig, plan: Plan) -> None:
    """Raises: ConfigError where kernels for a CPU are to be compiled and there is nothing to compile them with, or no
    place to keep them."""
    if not is_compiled(cfg, plan) or plan.device.type != "cpu":
        return
    _require_place()  # first: torch's compiler can't be imported without
    from torch._inductor.cpp_builder import get_cpp_compiler  # seconds, which the first step would take
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        what = "got `true`, but there is no C++ compiler here, which kernels for a CPU need"
        raise ConfigError(Problem(KEY, what, f"install g++, or name one by CXX=…; or {AWAY}")) from error


def _require_place() -> None:
    """Raises: ConfigError where torch's compiler can't write into its folder."""
    try:
        from torch._inductor.runtime.cache_dir_utils import cache_dir  # makes it, for some part of torch's own

        with tempfile.TemporaryFile(dir=cache_dir()):
            pass
    except OSError as error:
        what = f"got `true`, but torch's compiler can't write what it makes: {error}"
        hint = f"let TORCHINDUCTOR_CACHE_DIR name a folder of yours; or {AWAY}"
        raise ConfigError(Problem(KEY, what, hint)) from error


def not_compiled(error: BaseException) -> Problem | None:
    """What is told of an error that came from torch's compiler; None for any other."""
    if not (f"{type(error).__module__}.".startswith(_OF_COMPILERS) or _while_compiling(error)):
        return None
    explanation = _EXPLANATION.search(str(error))
    said = first_line(error) + (f": {explanation[1]}" if explanation else "")
    return Problem(KEY, f"torch can't compile this model{_user_line(error)}: {said[:_LONG]}", AWAY)


def _while_compiling(error: BaseException) -> bool:
    """Errors without a class of the compiler's pass through it too."""
    chain = [e for e in (error, error.__cause__) if isinstance(e, FAULTS)]
    frames = [frame for e in chain for frame in traceback.extract_tb(e.__traceback__)]
    return any(frame.filename.endswith(_AT_WORK) for frame in frames)


def _user_line(error: BaseException) -> str:
    """Where in the user's code, as the compiler tells at the end of its message; empty where it does not."""
    lines = _USER_LINE.findall(str(error).partition(_USER_CODE)[2])
    theirs = [f"{name}:{line}" for name, line in lines if "site-packages" not in name]
    return f" ({theirs[-1]})" if theirs else ""
