"""From what a check raised to its outcome. Owns the order in which causes count; must not touch pytest's reports.

Anything but silence is at best inconclusive: a check passes only when set-up, call and teardown all raised nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from leaseproof.checks import Refuted

Outcome = Literal["passed", "refuted", "inconclusive", "skipped"]
PHASES = ("setup", "call", "teardown")


@dataclass(frozen=True)
class Ending:
    """How a check ended; `because` is the structured reason of a refutation."""

    outcome: Outcome
    because: str | None = None
    detail: str = ""


def ending(raised: Mapping[str, BaseException | None]) -> Ending:
    """The outcome of the phases that ran, each with what it raised.

    A refutation found at teardown (a leaked session) counts after a call that passed or refuted, and not after one
    that was cut off: what trouble leaves behind says nothing of the system.
    """
    for phase in PHASES:
        if phase not in raised:
            if phase == "call" and (error := raised.get("setup")) is not None:
                return _undecided(error, "setup")
            return Ending("inconclusive", detail=f"the {phase} of the check did not run")
        error = raised[phase]
        if error is not None and phase != "setup":
            return _of(error, phase)
    return Ending("passed")


def _of(error: BaseException, phase: str) -> Ending:
    for leaf in _leaves(error):
        if isinstance(leaf, Refuted):
            return Ending("refuted", leaf.because, leaf.detail)
    return _undecided(error, phase)


def _undecided(error: BaseException, phase: str) -> Ending:
    """What is raised before the check began is never a refutation: no check has said it."""
    if isinstance(error, pytest.skip.Exception):
        return Ending("skipped", detail=str(error))
    leaves = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))
    return Ending("inconclusive", detail=leaves if phase == "call" else f"{phase}: {leaves}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
