"""`leaseproof matrix`: renders, merges and verifies evidence files. Owns options and messages; others do the work."""

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from leaseproof.claims.catalogue import BadCatalogue, Catalogue, load_catalogue
from leaseproof.claims.lock import BadLock, Lock, load_lock
from leaseproof.cli import FAILED
from leaseproof.cli.terminal import console, fail
from leaseproof.evidence.merge import CannotMerge
from leaseproof.evidence.merge import merge as merged
from leaseproof.evidence.model import BadEvidence, Evidence, read_evidence, schema_text
from leaseproof.evidence.project import differences
from leaseproof.evidence.redact import redact
from leaseproof.evidence.verdicts import problems
from leaseproof.files import write_text
from leaseproof.report.files import FORMATS
from leaseproof.report.view import View, plain

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
        _say(f"{view.headline}. {view.under_headline}")


@app.command()
def verify(
    file: File,
    facts: Annotated[
        Path | None, typer.Option("--facts", metavar="DIR", help="Compare the fact logs that lie there, too.")
    ] = None,
) -> None:
    """Compute every result again from the facts that the file states. Exit code 1 where one differs."""
    evidence = _read(file)
    catalogue, lock = _rules()
    found = problems(evidence) + differences(evidence, catalogue, lock)
    found += _logs_differ(evidence, facts) if facts else []
    for problem in found:
        _say(f"{file}: {problem}")
    if found:
        raise typer.Exit(FAILED)
    view = View(evidence)
    _say(f"{file}: unsigned; every result follows from the facts in it")
    if (evidence.catalogue_sha256, evidence.checks_lock_sha256) != (catalogue.digest, lock.digest):
        _say(
            "its claims or expected checks are not those of this leaseproof, so they were taken as the file states them"
        )
    _say(f"{view.name}, {evidence.subject.label}: {view.headline}. {view.under_headline} {view.core}.")


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
    if found := problems(evidence):
        fail(f"{file}: {found[0]} (`leaseproof matrix verify` shows all)", FAILED)
    return evidence


def _rules() -> tuple[Catalogue, Lock]:
    try:
        return load_catalogue(), load_lock()
    except (BadCatalogue, BadLock) as error:
        fail(str(error))


def _logs_differ(evidence: Evidence, folder: Path) -> list[str]:
    """Logs in `folder`, or in a folder of the run's name below, that are not those of the evidence."""
    found = []
    for environment in evidence.environments:
        below = folder / environment.run
        place = below if below.is_dir() else folder
        for log in environment.logs:
            path = place / f"{Path(log.process).name}.jsonl"
            try:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                found.append(f"can't read the fact log {path}: {error.strerror}")
                continue
            if digest != log.sha256:
                found.append(f"the fact log {path} is not the one that the evidence was made from")
    return found


def _put(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        write_text(output, text)
    except OSError as error:
        fail(f"can't write {output}: {error.strerror}")


def _say(text: str) -> None:
    console().print(plain(redact(text)), markup=False, soft_wrap=True)
