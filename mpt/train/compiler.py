"""Whether a model can be compiled here, and how one that can't is told."""

from __future__ import annotations

from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem, first_line
from mpt.plan.compiled import is_compiled
from mpt.plan.plan import Plan

AWAY = "leave trainer.compile away: the model then runs as it is"
_OF_COMPILERS = ("torch._dynamo.", "torch._functorch.", "torch._inductor.")


def require_compiler(cfg: RunConfig, plan: Plan) -> None:
    """Raises: ConfigError where kernels for a CPU are to be compiled and there is nothing to compile them with."""
    if not is_compiled(cfg, plan) or plan.device.type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler  # seconds, which the first step would take
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        what = "got `true`, but there is no C++ compiler here, which kernels for a CPU need"
        raise ConfigError(Problem("trainer.compile", what, f"install g++, or name one by CXX=…; or {AWAY}")) from error


def not_compiled(error: BaseException) -> Problem | None:
    """What is told of an error that came from torch's compiler; None for any other."""
    if not f"{type(error).__module__}.".startswith(_OF_COMPILERS):
        return None
    return Problem("trainer.compile", f"torch can't compile this model: {first_line(error)}", AWAY)
