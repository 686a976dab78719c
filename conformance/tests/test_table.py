"""The closing table of `verify`: what a person reads first must not promise more than the evidence."""

import io
from pathlib import Path

from rich.console import Console
from samples import DIRTY, good_facts, sample

from leaseproof.cli import table
from leaseproof.evidence.model import Evidence

GREEN = "\x1b[32m"


def shown(evidence: Evidence) -> str:
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200, highlight=False)
    table.show(evidence, screen, Path("report.html"))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_last_line_counts_all_claims_and_the_core_ones_that_passed() -> None:
    last = shown(sample()).splitlines()[-1]
    assert last == (
        "4 Passed · 0 Failed · 0 Inconclusive · 61 Not run · 4 of 38 core claims Passed · report report.html"
    )


def test_provisional_outcomes_read_as_such_and_are_never_green() -> None:
    assert GREEN in shown(sample())
    text = shown(sample(before=DIRTY, after=DIRTY))
    assert GREEN not in text
    lines = text.splitlines()
    said = next(place for place, line in enumerate(lines) if "every row reads Not run" in line)
    assert said < next(place for place, line in enumerate(lines) if "Passed" in line)
    assert "changed: sample/repository.py" in lines[said]
    assert lines[-1].startswith("4 Passed (provisional) · 0 Failed (provisional)")
    assert "4 of 38 core claims Passed (provisional)" in lines[-1]
    assert text.count("Passed") == text.count("Passed (provisional)")


def test_a_provisional_failure_stays_red() -> None:
    first, *rest = good_facts()
    facts = [{**first, "outcome": "refuted", "because": "did_not_wait"}, *rest]
    assert "\x1b[1;31mFailed (provisional)" in shown(sample(facts, before=DIRTY, after=DIRTY))
