"""What other loss scalings would have done in this run, and which one its gradients ask for."""

from __future__ import annotations

import math
from typing import Any

from mpt.record.numerics import GRADIENTS
from mpt.record.reader import RunData
from mpt.report.advice.history import history
from mpt.report.advice.recommend import Advice, advise
from mpt.report.advice.replay import Outcome
from mpt.report.advice.survival import all_zero, layers
from mpt.report.advice.words import power, share
from mpt.report.section import Section, Table, Tone, clean, get
from mpt.units import counted

_TITLE = "Loss scaling for float16: what each strategy would have done"
_KEYS = ("init_scale", "growth_interval", "min_scale", "max_scale")


def section(run: RunData) -> Section | None:
    """None for a run whose gradients were not looked at."""
    past = history(run)
    if past is None:
        return _vanished(run) or _nonfinite(run)
    advice = advise(past, layers(run.numerics, past.spec if past.own else None))
    return Section(
        key="advice",
        title=_TITLE,
        facts=tuple(_facts(advice)),
        tables=(_table(advice),),
        notes=tuple(_notes(run, advice)),
        data={
            "format": past.spec.name,
            "recommended": None if advice.choice is None else command(advice.choice),
            "reason": advice.sentence,
            "strategies": [_document(o) for o in advice.outcomes],
        },
    )


def _vanished(run: RunData) -> Section | None:
    """Every gradient that was looked at is 0: they are smaller than their format holds, by how much can't be seen."""
    if not all_zero(run.numerics):
        return None
    compute = clean(get(run.config, "precision", "compute") or "their format")
    scale = power(run.numerics.looks[-1].scale)
    why = f"every gradient is exactly 0 in {compute} at loss scale {scale}: nothing is trained"
    hint = "how small they are can't be seen in this record: numerics=light with precision=bf16 measures it"
    facts = (("recommended", "scaling=dynamic"), ("because", why))
    data = {"recommended": "scaling=dynamic", "reason": why, "strategies": []}
    return Section("advice", _TITLE, facts=facts, notes=(("bad", hint),), data=data)


def _nonfinite(run: RunData) -> Section | None:
    """Every look found gradients that are inf or NaN: nothing can be replayed, but that is known."""
    scales = [look.scale for look in run.numerics.looks if look.of(GRADIENTS)]
    if not scales:
        return None
    found = f"of {len(scales):,} looks at the gradients none found them finite"
    if not any(map(math.isfinite, run.steps.loss)):
        choice, why = None, f"{found}, nor was the loss of any step: no loss scale can cure that"
        hint = "look at the inputs and at the event nonfinite_forward in events.jsonl, or lower optimizer.lr"
    else:
        choice = "scaling=dynamic" if get(run.config, "scaling", "name") == "static" else None
        why = f"{found}, at loss scales from {power(min(scales))} to {power(max(scales))}"
        hint = "how large they are can't be seen in this record: numerics=light with precision=bf16 measures it"
    facts = (("recommended", choice or "nothing that scaling could do"), ("because", why))
    document: dict[str, Any] = {"recommended": choice, "reason": why, "strategies": []}
    return Section("advice", _TITLE, facts=facts, notes=(("bad", hint),), data=document)


def command(choice: Outcome) -> str:
    """The words that ask for it."""
    known = choice.constants
    keys = () if known["name"] == "none" else ("init_scale",) if known["name"] == "static" else _KEYS
    words = [f"scaling={known['name']}", *(f"scaling.{k}={known[k]:.15g}" for k in keys if known.get(k) is not None)]
    return " ".join(words)


def _facts(advice: Advice) -> list[tuple[str, str]]:
    what = "precision=bf16" if advice.choice is None else command(advice.choice)
    return [("recommended", what), ("because", advice.sentence)]


def _table(advice: Advice) -> Table:
    rows = tuple(_cells(o) for o in advice.outcomes)
    dim = tuple(i for i, o in enumerate(advice.outcomes) if o.ended is not None)
    columns = ("strategy", "from", "skipped steps", "weights' gradients lost", "least scale", "largest", "")
    return Table(columns, rows, right=(1, 2, 3, 4, 5), dim=dim)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    told = "" if outcome.ended is None else f"ends the run at step {outcome.ended:,}"
    first = 1.0 if outcome.constants["name"] == "none" else float(outcome.constants["init_scale"])
    return (
        clean(outcome.name),
        power(first),
        f"{outcome.skipped:,} of {outcome.steps:,}",
        share(outcome.lost),
        power(outcome.low),
        power(outcome.high),
        told,
    )


def _notes(run: RunData, advice: Advice) -> list[tuple[Tone, str]]:
    past = advice.past
    told = (
        f"replayed over this run's {counted(len(past), 'step')}, gradients measured at {len(past.looks):,} of them and "
        "between these taken from their norm; that other updates would have led elsewhere is left out; the table "
        "counts the gradients of weights, what is recommended heeds those of outputs too"
    )
    notes: list[tuple[Tone, str]] = [("", told)]
    broken = past.broken()
    if broken:
        notes.append(("careful", _broken(broken, past.own)))
    if past.own:
        notes.append(
            ("careful", "this run computed in float16: what became 0 under its own scale can only be guessed at; "
                        "numerics=light with precision=bf16 or fp32 sees all")
        )  # fmt: skip
    elif get(run.config, "scaling", "name") == "none":
        notes.append(("", f"the run itself computed in {clean(get(run.config, 'precision', 'compute') or 'unknown')}"))
    return notes


def _broken(steps: int, own: bool) -> str:
    """What is said of steps whose forward pass was non-finite already."""
    which = "1 step was" if steps == 1 else f"{steps:,} steps were"
    text = f"{which} non-finite whatever the loss scale, and left out of the recommendation: events.jsonl tells why"
    return f"{text}; if float16's own activations overflowed, precision=bf16 cures it" if own else text


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "constants": {k: v for k, v in outcome.constants.items() if not isinstance(v, dict)},
        "skipped": outcome.skipped,
        "steps": outcome.steps,
        "gradients_lost": outcome.lost,
        "scale": {"min": outcome.low, "max": outcome.high, "final": outcome.last},
        "ended_at": outcome.ended,
    }
