"""The closing table of `verify`. Owns how an evidence file looks in a terminal; must not compute results."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leaseproof.evidence.model import ClaimRow, Evidence, InEnvironment, Result, Verdict
from leaseproof.report.view import View, plain

STYLES = {"Passed": "green", "Failed": "bold red", "Inconclusive": "yellow", "Stale": "yellow", "Not run": "dim"}
ORDER: tuple[Result, ...] = ("Passed", "Failed", "Inconclusive", "Stale", "Not run")


def show(evidence: Evidence, console: Console, report: Path) -> None:
    """Print what applies, a row for each claim that was tried, why the others were not, the records and the counts."""
    console.print(_said(heading(evidence)))
    if (blocked := next((row for row in evidence.claims if row.provisional), None)) is not None:
        console.print(_provisional(evidence, blocked.reason))
    tried = [(row, shown) for row in evidence.claims if (shown := _shown(row)).result != "Not run"]
    if tried:
        console.print(_matrix(tried))
    idle: dict[str, list[ClaimRow]] = defaultdict(list)
    for row in evidence.claims:
        if (shown := _shown(row)).result == "Not run":
            idle[shown.reason].append(row)
    for reason, claims in idle.items():
        console.print(Text.assemble(("Not run", STYLES["Not run"]), plain(f"  {reason}: {_ids(claims)}")))
    console.print(_records(evidence))
    console.print(_closing(evidence, report))


def heading(evidence: Evidence) -> str:
    """The first line: how much applies, then what was tried on what."""
    summary, environment = evidence.summary, evidence.environments[0]
    parts = [f"{summary.core_applying} of {summary.core} core claims apply"] if summary else []
    parts += [f"{evidence.subject.name} {evidence.subject.version}", evidence.subject.label]
    parts += [f"PostgreSQL {environment.postgresql.version}"] if environment.postgresql else []
    parts += [environment.redis.version] if environment.redis else []
    parts += [f"{environment.cores} cores"] if environment.cores else []
    return "leaseproof verify · " + " · ".join(parts)


def _matrix(tried: Iterable[tuple[ClaimRow, Verdict]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("claim", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("evidence", overflow="fold")
    table.add_column("negative case", overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
    for row, shown in tried:
        found = row.by_environment[0]
        evidence = _checks(found) if shown.result == "Passed" else shown.reason
        took = sum(check.seconds for check in found.checks)
        table.add_row(
            _said(row.id), _result(shown.result, row), _said(evidence), _said(_controls(found)), f"{took:.1f} s"
        )
    return table


def _shown(row: ClaimRow) -> Verdict:
    return row.provisional or Verdict(result=row.result, code=row.code, reason=row.reason)


def _result(result: Result, row: ClaimRow) -> Text:
    return _told(result, provisional=row.provisional is not None)


def _told(result: Result, *, provisional: bool) -> Text:
    """A result; a provisional one is no success, so it is never green."""
    if not provisional:
        return Text(result, style=STYLES[result])
    return Text(f"{result} (provisional)", style="" if result == "Passed" else STYLES[result])


def _provisional(evidence: Evidence, reason: str) -> Text:
    changes = ", ".join(evidence.subject.changes[:5])
    said = f"{reason}: every row reads Not run, the outcomes below are provisional"
    return Text(plain(said + (f" ({changes})" if changes else "")), style="yellow")


def _checks(found: InEnvironment) -> str:
    notes = [f"{name} {value}" for check in found.checks for name, value in check.notes.items()]
    number = len(found.checks)
    return ", ".join([f"{number} check{'' if number == 1 else 's'}", *notes[:3]])


def _controls(found: InEnvironment) -> str:
    return ", ".join(
        f"{one.id} {one.outcome.replace('_', ' ')}" + (f" ({one.because})" if one.because else "")
        for one in found.controls
    )


def _ids(claims: list[ClaimRow]) -> str:
    """LOCK-3 6 8, CANCEL-2."""
    families: dict[str, list[str]] = defaultdict(list)
    for row in claims:
        family, _, number = row.id.rpartition("-")
        families[family].append(number)
    return ", ".join(f"{family}-{' '.join(numbers)}" for family, numbers in families.items())


def _records(evidence: Evidence) -> Text:
    parts = []
    for record in evidence.records:
        result = record.provisional or record.result
        told = _told(result, provisional=record.provisional is not None and result != "Not run")
        parts.append(_said(f"{record.id} ").append_text(told))
    return Text("records  ").append_text(Text(" · ").join(parts))


def _closing(evidence: Evidence, report: Path) -> Text:
    counted = (evidence.summary.provisional or evidence.summary.results) if evidence.summary else {}
    view = View(evidence)
    counts = [
        f"{counted.get(result, 0)} {result}{' (provisional)' if view.provisional and result != 'Not run' else ''}"
        for result in ORDER
        if counted.get(result) or result != "Stale"
    ]
    return _said(" · ".join([*counts, view.core_passed, f"report {report}"]))


def _said(text: str) -> Text:
    """What a system, a check or a file says, as it may be shown."""
    return Text(plain(text))
