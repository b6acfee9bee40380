"""From the words of a command line to Hydra's overrides: quoting, parsing, and what is wrong with a word."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem

PATH_KEYS = frozenset(
    {
        *("run_dir", "resume", "init_from", "data.root", "checkpoint.dir", "model.path", "data.path"),
        *("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"),
    }
)
"""Text that is never split at commas."""

_SHAPE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=]*?)(?P<rest>=(?P<text>.*))?\Z", re.DOTALL)
_QUOTED = re.compile(r"""\s*('([^'\\]|\\.)*'|"([^"\\]|\\.)*")\s*\Z""", re.DOTALL)
_ESCAPED = re.compile(r"\\[()\[\]{}:=, \t]")
_SWEEP_CALL = re.compile(r"\s*(choice|range|glob|interval|sort|shuffle|tag)\s*\(")
_SWEEP_LIKE = re.compile(r"\s*\w+\s*\(")
_COMMAS = re.compile(r"""((?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,'"])+)""", re.DOTALL)


@dataclass(frozen=True)
class Word:
    """One `key=value` of the command line; `sign` is what precedes it (`+`, `++`, `~`)."""

    raw: str
    sign: str
    key: str
    text: str | None

    @property
    def hydra(self) -> bool:
        """Whether it speaks to Hydra itself (`hydra.sweep.dir=…`)."""
        return self.key.startswith(("hydra.", "hydra/"))

    @property
    def top(self) -> str:
        """The group (or top-level key) that it is about."""
        return self.key.split(".")[0]


def split(raw: str) -> Word:
    """The word's parts; every text splits."""
    match = _SHAPE.match(raw)
    assert match is not None, "the pattern takes any text"
    return Word(raw, match["sign"] or "", match["key"].strip(), match["text"])


@cache
def text_keys() -> frozenset[str]:
    """The dotted keys whose values are text by the schema."""
    found = set()
    for name, hint in get_type_hints(RunConfig).items():
        if is_text(hint):
            found.add(name)
        elif hasattr(hint, "__dataclass_fields__"):
            found |= {f"{name}.{key}" for key, inner in get_type_hints(hint).items() if is_text(inner)}
    return frozenset(found | PATH_KEYS)


def is_text(hint: Any) -> bool:
    """Whether a type is `str` or `str | None`."""
    members = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return str in members


def quoted(text: str, may_sweep: bool) -> str:
    """`text` as Hydra's grammar reads it back unchanged; with `may_sweep`, commas separate values."""
    if _QUOTED.match(text) or _ESCAPED.search(text) or text.lower() == "null":
        return text
    if may_sweep and _SWEEP_CALL.match(text):
        return text
    if may_sweep and "," in text:
        return ",".join(quoted(piece.strip(), False) for piece in _COMMAS.findall(text))
    return str(QuotedString(text=text, quote=Quote.single).with_quotes())


def quote_word(word: Word, text: bool, multirun: bool) -> str:
    """The word as Hydra is to see it."""
    if not text or word.text is None:
        return word.raw
    sweeps = multirun and (word.key not in PATH_KEYS or bool(_SWEEP_CALL.match(word.text)))
    return f"{word.sign}{word.key}={quoted(word.text, sweeps)}"


def parse(line: str, word: Word, parser: OverridesParser | None = None) -> Override | Problem:
    """Hydra's reading of `line`, or what is wrong and the word as it should be typed."""
    try:
        return (parser or OverridesParser.create()).parse_override(line)
    except HydraException as error:
        what = f"can't be read: {_first_line(error)}"
        if word.text is None:
            return Problem(word.raw, what, "write key=value")
        pieces = [piece.strip() for piece in word.text.split(",")]
        if "" in pieces and any(pieces) and word.text[:1] not in "[{":
            meant = f"{word.key}={','.join(filter(None, pieces))}"
            return Problem(word.key, "has an empty place between its commas", f"did you mean `{meant}`?")
        if _SWEEP_LIKE.match(word.text) and "Unknown function" in what:
            return Problem(word.key, what, f"a list is swept: {word.key}=a,b or {word.key}=range(0,5)")
        if word.text.startswith("{") and ":" not in word.text:
            return Problem(word.key, what, f"a list is swept without braces: {word.key}={word.text.strip('{}')}")
        if word.text[:1] in "[{":
            return Problem(word.key, what, f"lists are typed '{word.key}=[a,b]', mappings '{word.key}={{key: value}}'")
        if word.text.startswith("="):
            return Problem(word.key, "has two `=`", f"did you mean `{word.key}={word.text.lstrip('=')}`?")
        as_text = f"{word.key}={QuotedString(text=word.text, quote=Quote.double).with_quotes()}"
        return Problem(word.key or word.raw, what, f"text with special characters is typed {shlex.quote(as_text)}")


def _first_line(error: HydraException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "not Hydra's grammar"


def misshapen(word: Word, owner_of: Callable[[str], str | None]) -> Problem | None:
    """What is wrong with a word before any key is looked up, if anything."""
    if word.sign == "~" and not word.hydra:
        return Problem(word.raw, "keys can't be removed", f"set it instead, e.g. {word.key}=null")
    if not word.raw.strip():
        return Problem("''", "is an empty word", "leave it away; a shell variable that is not set leaves one")
    if word.text is None and word.sign != "~":
        owner = owner_of(word.raw)
        meant = f"{owner}={word.raw}" if owner else word.raw.replace(":", "=", 1) if ":" in word.raw else ""
        return Problem(word.raw, "is no key=value", f"did you mean `{meant}`?" if meant else _SHAPE_HINT)
    if not word.key:
        return Problem(word.raw, "has no key before `=`", _SHAPE_HINT)
    if word.text == "":
        return Problem(word.key, "got nothing after `=`", f"give a value, or {word.key}=null for none")
    return None


_SHAPE_HINT = "settings are typed key=value, without spaces"


def refuse_torn(raws: Sequence[str]) -> None:
    """Raises: ConfigError for lists and mappings that a shell took apart at their spaces, each as it is to be typed."""
    problems, i = [], 0
    while i < len(raws):
        last = _closes(raws, i)
        if last > i:
            what = "got a value with spaces, which the shell took apart"
            problems.append(Problem(split(raws[i]).key, what, f"quote it: {shlex.quote(' '.join(raws[i : last + 1]))}"))
        i = last + 1
    if problems:
        raise ConfigError(*problems)


def _closes(raws: Sequence[str], first: int) -> int:
    """The index of the word in which the brackets close that open in the value at `first`; else `first`."""
    depth, text = 0, split(raws[first]).text or ""
    if text[:1] not in ("[", "{"):
        return first
    for i in range(first, len(raws)):
        depth += sum(raws[i].count(c) for c in "[{") - sum(raws[i].count(c) for c in "]}")
        if depth <= 0:
            return i
    return first


def names(typed: Iterable[str], key: str) -> bool:
    """Whether a word is about that key."""
    return any(split(raw).key == key for raw in typed)


def refuse_hydra_words(typed: list[str]) -> None:
    """Raises: ConfigError for words to Hydra in a plain run, where they would do nothing."""
    instead = {"hydra.run.dir": "the run's folder is run_dir=…"}
    hint = "they act with --multirun, --cfg and --info"
    found = [word.key for word in map(split, typed) if word.hydra]
    if found:
        raise ConfigError(*(Problem(key, "does nothing in a plain run", instead.get(key, hint)) for key in found))
