"""`leaseproof matrix`: renders, merges and verifies evidence files. Owns options and messages; others do the work."""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from leaseproof.claims.catalogue import BadCatalogue, load_catalogue
from leaseproof.claims.lock import BadLock, Expected, Lock, load_lock
from leaseproof.cli import FAILED, INCONCLUSIVE
from leaseproof.cli.terminal import console, fail, shown
from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.merge import CannotMerge
from leaseproof.evidence.merge import merge as merged
from leaseproof.evidence.model import BadEvidence, Environment, Evidence, Fact, read_evidence, schema_text
from leaseproof.evidence.plan import BadPlan, Plan
from leaseproof.evidence.project import differences, restated
from leaseproof.evidence.verdicts import problems
from leaseproof.files import write_text
from leaseproof.report.files import FORMATS
from leaseproof.report.view import View

app = typer.Typer(
    help="Render, merge and verify evidence files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """The forms of a report."""

    html = "html"
    md = "md"
    json = "json"


File = Annotated[Path, typer.Argument(metavar="FILE", help="An evidence.json.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write here, else to the output.")]


@app.command()
def render(
    file: File,
    form: Annotated[Format, typer.Option("--format", help="What to make of it.")] = Format.html,
    output: Output = None,
) -> None:
    """Make a report of an evidence file whose results follow from its facts."""
    _put(FORMATS[form](_sound(file)), output)


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Evidence files of several jobs.")],
    output: Output = None,
) -> None:
    """Put the environments of several jobs side by side, in one evidence file."""
    try:
        evidence = merged([(str(file), _sound(file)) for file in files])
    except CannotMerge as error:
        fail(str(error))
    _put(evidence.text, output)
    if output is not None:
        view = View(evidence)
        _say(f"{view.rules} {view.headline}. {view.under_headline}".strip())


@app.command()
def verify(
    file: File,
    facts: Annotated[
        Path | None, typer.Option("--facts", metavar="DIR", help="Compare the fact logs that lie there, too.")
    ] = None,
) -> None:
    """Compute every result again from the facts that the file states.

    Exit code 1 where one differs, 3 where the file was made under other rules than this kit's.
    """
    evidence = _read(file)
    found = _problems(evidence)
    found += _logs_differ(evidence, facts) if facts else []
    for problem in found:
        _say(f"{file}: {problem}")
    if found:
        raise typer.Exit(FAILED)
    view = View(evidence)
    _say(f"{file}: unsigned; every result follows from the facts in it")
    if view.rules:
        _say(view.rules)
    _say(f"{view.name}, {evidence.subject.label}: {view.headline}. {view.under_headline} {view.core}.")
    if view.rules:
        raise typer.Exit(INCONCLUSIVE)


@app.command()
def schema() -> None:
    """Print the JSON Schema of evidence files."""
    _put(schema_text(), None)


def _read(file: Path) -> Evidence:
    try:
        return read_evidence(file)
    except BadEvidence as error:
        fail(str(error))


def _sound(file: Path) -> Evidence:
    """The evidence, whose stated results follow from its facts; else the command ends."""
    evidence = _read(file)
    if found := _problems(evidence):
        fail(f"{file}: {found[0]} (`leaseproof matrix verify` shows all)", FAILED)
    return evidence


def _problems(evidence: Evidence) -> list[str]:
    """What does not follow, from the file's facts or from the rules that it names where they are this kit's."""
    try:
        catalogue, lock = load_catalogue(), load_lock()
    except (BadCatalogue, BadLock) as error:
        fail(str(error))
    return problems(evidence) + differences(evidence, catalogue, lock)


def _logs_differ(evidence: Evidence, folder: Path) -> list[str]:
    """Where the evidence is not what follows from plan and logs in `folder`, or in a folder of the run's name below."""
    lock = Lock({row.id: Expected(row.revision, row.expected, row.planned, row.control) for row in evidence.claims})
    found = []
    for environment in evidence.environments:
        below = folder / environment.run
        try:
            found += _run_differs(environment, below if below.is_dir() else folder, lock)
        except BadPlan as error:
            found.append(str(error))
        except OSError as error:
            found.append(f"can't read the fact log {error.filename}: {error.strerror}")
    return found


def _run_differs(environment: Environment, place: Path, lock: Lock) -> list[str]:
    found = []
    plan = Plan.read(place / "plan.json")
    if (plan.run, plan.sha256) != (environment.run, environment.plan_sha256):
        found.append(f"the plan in {place} is not the one of run {environment.run}")
    logs, trouble, facts = restated(plan, read_logs(place), lock)
    there = {log.process: log for log in logs}
    for log in environment.logs:
        if log.process not in there:
            found.append(f"the fact log {log.process}.jsonl is not in {place}")
        elif log.sha256 != there[log.process].sha256:
            found.append(f"the fact log {log.process}.jsonl in {place} is not the one that the evidence was made from")
        elif log != there[log.process]:
            found.append(f"the fact log {log.process}.jsonl in {place} does not end as the evidence says")
    if more := sorted(set(there) - {log.process for log in environment.logs}):
        found.append(f"the evidence of run {environment.run} leaves out the logs of {', '.join(more)}")
    if left_out := [one for one in trouble if one not in environment.trouble]:
        found.append(f"the evidence of run {environment.run} leaves out trouble: {left_out[0].what}")
    stated, logged = Counter(map(_line, environment.facts)), Counter(map(_line, facts))
    for system, check, _ in stated - logged:
        found.append(f"the logs of run {environment.run} don't hold what the evidence states of {check} on {system}")
    for system, check, _ in logged - stated:
        found.append(f"the evidence of run {environment.run} does not state what the logs hold of {check} on {system}")
    return found


def _line(fact: Fact) -> tuple[str, str, str]:
    """A fact, to be compared; the order of its claims says nothing."""
    whole = fact.model_copy(update={"claims": tuple(sorted(fact.claims))}).model_dump_json()
    return fact.system, fact.check, whole


def _put(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        write_text(output, text)
    except OSError as error:
        fail(f"can't write {output}: {error.strerror}")


def _say(text: str) -> None:
    console().print(shown(text), markup=False, soft_wrap=True)
