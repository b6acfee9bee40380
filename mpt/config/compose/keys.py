"""Single keys (`trainer.max_steps=3`): is there such a key, and what is near when there is not."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpt.errors import Problem
from mpt.registry import closest

_OTHER_WORDS = {
    **dict.fromkeys(("epochs", "n_epochs", "num_epochs", "num_train_epochs"), "trainer.max_epochs"),
    **dict.fromkeys(("steps", "iters", "iterations", "max_iters"), "trainer.max_steps"),
    **dict.fromkeys(("bs", "batch", "batchsize"), "data.batch_size"),
    **dict.fromkeys(("num_workers", "n_workers"), "data.workers"),
    **dict.fromkeys(("learning_rate", "learningrate"), "optimizer.lr"),
    **dict.fromkeys(("wd", "decay"), "optimizer.weight_decay"),
    **dict.fromkeys(("accumulation", "grad_accum", "gradient_accumulation_steps"), "trainer.accumulate"),
    **dict.fromkeys(("clip", "grad_clip", "max_grad_norm"), "trainer.clip_norm"),
}
"""What other programs call these keys."""


def dotted(cfg: DictConfig) -> list[str]:
    """Every key of the two levels that a configuration has."""
    found: list[str] = []
    for name in map(str, cfg):
        inner = cfg._get_node(name)
        if isinstance(inner, DictConfig) and not inner._is_none():
            found += [f"{name}.{key}" for key in map(str, inner)]
        elif name != "hydra":
            found.append(name)
    return found


def exists(cfg: DictConfig, key: str) -> bool:
    """Whether `key` is there; keys inside an option that is a mapping (`model.kwargs.x`) are the user's own."""
    parts = key.split(".")
    known = dotted(cfg)
    if len(parts) <= 2:
        return key in known
    owner = ".".join(parts[:2])
    return owner in known and isinstance(OmegaConf.select(cfg, owner, throw_on_missing=False), DictConfig)


def elsewhere_called(key: str, known: list[str]) -> list[str]:
    """The key that other programs call so; empty where there is none."""
    meant = _OTHER_WORDS.get(key.rsplit(".", 1)[-1].lower())
    return [meant] if meant in known else []


def unknown(key: str, known: list[str], choices: dict[str, str], owners: list[str]) -> Problem:
    """The message for a key that is not there; `owners` are the choices of its group that have it."""
    group = key.split(".")[0]
    chosen = choices.get(group, "default")
    what = "no such key" if chosen == "default" else f"no such key with {group}={chosen}"
    if owners:
        return Problem(key, what, "it belongs to " + " or ".join(f"{group}={owner}" for owner in owners[:4]))
    return Problem(key, what, hint(key, known))


def hint(key: str, known: list[str]) -> str:
    """The nearest keys, by the last part first (`max_steps` or `iters`: `trainer.max_steps`), else its group's."""
    leaf = key.rsplit(".", 1)[-1]
    same = [k for k in known if k.rsplit(".", 1)[-1] == leaf]
    close = same or elsewhere_called(key, known) or closest(key, known, cutoff=0.7)
    if close:
        return "did you mean " + " or ".join(f"`{k}`" for k in close[:3]) + "?"
    group = key.split(".")[0]
    siblings = [k for k in known if k.startswith(f"{group}.")]
    return "its keys: " + ", ".join(siblings) if siblings else "`mpt train --help` shows all keys"


def mismatch(error: OmegaConfBaseException, cfg: DictConfig, key: str, text: str | None) -> Problem:
    """The message where a list was wanted and something else came, or the other way round."""
    now, told = OmegaConf.select(cfg, key, throw_on_missing=False), str(error).splitlines()[0]
    if OmegaConf.is_list(now):
        told = f"it is a list: {key}=[{text}]"
    elif OmegaConf.is_dict(now):
        told = f"it is a mapping: {key}={{key: value}}"
    return Problem(key, f"got `{text}`", told)
