"""The closing table of `verify`. Owns how an evidence file looks in a terminal; must not compute results."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leaseproof.evidence.model import ClaimRow, Evidence, InEnvironment, Verdict

STYLES = {"Passed": "green", "Failed": "bold red", "Inconclusive": "yellow", "Stale": "yellow", "Not run": "dim"}
ORDER = ("Passed", "Failed", "Inconclusive", "Stale", "Not run")


def show(evidence: Evidence, console: Console, report: Path) -> None:
    """Print what applies, a row for each claim that was tried, why the others were not, the records and the counts."""
    console.print(Text(heading(evidence)))
    tried = [(row, shown) for row in evidence.claims if (shown := _shown(row)).result != "Not run"]
    if tried:
        console.print(_matrix(tried))
    idle: dict[str, list[ClaimRow]] = defaultdict(list)
    for row in evidence.claims:
        if (shown := _shown(row)).result == "Not run":
            idle[shown.reason].append(row)
    for reason, claims in idle.items():
        console.print(Text.assemble(("Not run", STYLES["Not run"]), f"  {reason}: {_ids(claims)}"))
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
        table.add_row(row.id, _result(shown.result, row), Text(evidence), Text(_controls(found)), f"{took:.1f} s")
    return table


def _shown(row: ClaimRow) -> Verdict:
    return row.provisional or Verdict(result=row.result, code=row.code, reason=row.reason)


def _result(result: str, row: ClaimRow) -> Text:
    provisional = " (provisional)" if row.provisional else ""
    return Text(f"{result}{provisional}", style=STYLES[result])


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
        parts.append(Text.assemble(f"{record.id} ", (result, STYLES[result])))
    return Text("records  ").append_text(Text(" · ").join(parts))


def _closing(evidence: Evidence, report: Path) -> Text:
    counted = (evidence.summary.provisional or evidence.summary.results) if evidence.summary else {}
    counts = [f"{counted.get(result, 0)} {result}" for result in ORDER if counted.get(result) or result != "Stale"]  # type: ignore[call-overload]
    text = Text(" · ".join([*counts, f"report {report}"]))
    blocked = next((row for row in evidence.claims if row.provisional), None)
    if blocked is not None:
        text.append(f"\n{blocked.reason}: every row reads Not run, the outcomes above are provisional", style="yellow")
        changes = ", ".join(evidence.subject.changes[:5])
        text.append(f" ({changes})" if changes else "", style="yellow")
    return text
