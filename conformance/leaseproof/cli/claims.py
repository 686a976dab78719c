"""`leaseproof claims`: lists and shows claims, and brings checks.lock up to date. Owns options and words."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from leaseproof.claims.catalogue import BadCatalogue, Catalogue, Claim, load_catalogue
from leaseproof.claims.lock import BadLock, Lock, default_path, disagreements, load_lock, render_lock, update
from leaseproof.cli import options, prepare
from leaseproof.cli.table import STYLES
from leaseproof.cli.terminal import console, fail
from leaseproof.controls.registry import Control, load_controls
from leaseproof.evidence.inspect import checks_by_claim
from leaseproof.evidence.model import BadEvidence, ClaimRow, Evidence, read_evidence
from leaseproof.evidence.subject import identify
from leaseproof.files import write_text
from leaseproof.loading import WrongSystem, raised_at
from leaseproof.report.view import View, first_sentence, plain, provisional_of

LAST = Path("reports/evidence.json")


def claims(
    context: typer.Context,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID|FAMILY]...", help="Show these claims alone, whole.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option("--evidence", metavar="FILE", help=f"Show results of this file; by default {LAST}.")
    ] = None,
    update_lock: Annotated[
        bool, typer.Option("--update-lock", help="Write checks.lock for the checks and controls that are there now.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="With --update-lock: why checks were removed.")
    ] = None,
    system: options.System = None,
) -> None:
    """List the claims, show some, or bring checks.lock up to date."""
    kit = prepare.kit(context)
    try:
        catalogue, lock = load_catalogue(kit.claims), load_lock(kit.claims / default_path().name)
    except (BadCatalogue, BadLock) as error:
        fail(str(error))
    if update_lock:
        _update(kit, catalogue, lock, _controls(system), reason)
        return
    if wrong := disagreements(catalogue, lock):
        fail(f"catalogue and checks.lock don't fit: {wrong[0]}; `leaseproof claims --update-lock` writes checks.lock")
    wanted = _of_families(ids or [], catalogue)
    prepare.known("claim", wanted, catalogue.claims, "`leaseproof claims`")
    results = _results(evidence, catalogue, system)
    if wanted:
        for claim in catalogue.named(wanted).values():
            _show(claim, lock, results.get(claim.id))
    else:
        console().print(_list(catalogue.claims.values(), lock, results))


def _of_families(names: Iterable[str], catalogue: Catalogue) -> list[str]:
    """The names, with the ids of all its claims in the place of a family's."""
    ids: list[str] = []
    for name in names:
        ids += [claim.id for claim in catalogue.claims.values() if claim.family == name.upper()] or [name]
    return ids


def _results(file: Path | None, catalogue: Catalogue, system: str | None) -> dict[str, str]:
    """Claim to its result in the evidence file; Stale where that is not of this system, code or revision.

    Says first what the evidence is of.
    """
    if file is None and not LAST.is_file():
        return {}
    try:
        evidence: Evidence = read_evidence(file or LAST)
    except BadEvidence as error:
        fail(str(error))
    stale = _stale(evidence, system)
    subject, time = evidence.subject, evidence.finished.strftime("%Y-%m-%d %H:%M UTC")
    said = f"results of {subject.name} {subject.version}, {subject.label}, {time}"
    said += f": Stale, {stale}" if stale else ""
    console().print(Text(plain(said), style=STYLES["Stale"] if stale else ""), soft_wrap=True)
    if rules := View(evidence).rules:
        console().print(Text(rules), soft_wrap=True)
    return {
        row.id: f"Stale ({stale})" if stale else _result(row, catalogue.claims[row.id])
        for row in evidence.claims
        if row.id in catalogue.claims
    }


def _stale(evidence: Evidence, system: str | None) -> str:
    """Why the evidence says nothing of the system as it is now; empty where it does."""
    try:
        loaded = prepare.system(system)
    except WrongSystem as error:
        if system:
            fail(str(error))
        return f"with no system to compare: {error}"
    now = identify(loaded.file, loaded.system.name, loaded.system.version).subject
    if now.key == evidence.subject.key and (now.clean or not evidence.subject.clean):
        return ""
    return f"the system is now {now.name} {now.version}, {now.label}"


def _result(row: ClaimRow, claim: Claim) -> str:
    if row.revision != claim.revision:
        return f"Stale (revision {row.revision})"
    provisional = provisional_of(row)
    return f"{row.result} (provisional: {provisional})" if provisional else row.result


def _list(claims: Iterable[Claim], lock: Lock, results: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("claim", "kind", "records", "tier", "checks", *(["result"] if results else [])):
        table.add_column(name, no_wrap=True)
    table.add_column("says", overflow="fold")
    for claim in claims:
        expected = lock.claims[claim.id]
        checks = "planned" if expected.planned else str(len(expected.checks))
        cells = [claim.id, claim.kind, " ".join(claim.records), claim.tier, checks]
        result = results.get(claim.id, "")
        result = "Stale" if result.startswith("Stale") else result
        shown = [Text(result, style=STYLES.get(result.partition(" (")[0], ""))] if results else []
        table.add_row(*map(Text, cells), *shown, Text(first_sentence(claim.must)))
    return table


def _show(claim: Claim, lock: Lock, result: str | None) -> None:
    expected = lock.claims[claim.id]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    lines = {
        "claim": f"{claim.id}, {claim.kind}, revision {claim.revision}, {', '.join(claim.records)}",
        "must": claim.must,
        "failure surface": claim.failure_surface,
        "negative case": claim.negative_case,
        "owner": claim.semantic_owner,
        "tier": claim.tier,
        "requires": ", ".join(claim.requires),
        "checks": "planned" if expected.planned else "\n".join(expected.checks),
        "control": expected.control or "none yet",
        "removed": "\n".join(
            f"{one.check}, since revision {one.revision}: {one.reason}" for one in lock.removed if one.claim == claim.id
        ),
        "result": result or "",
    }
    for name, text in lines.items():
        if text:
            table.add_row(name, Text(plain(text, keep="\n")))
    console().print(table)
    console().print()


def _controls(system: str | None) -> Mapping[str, Control]:
    """The controls of the system whose defects checks.lock names."""
    try:
        return load_controls(prepare.system(system).system.name)
    except WrongSystem as error:
        fail(str(error))
    except Exception as error:  # noqa: BLE001 - other people's code is imported here
        fail(f"can't load the negative controls{raised_at(error)}: {type(error).__name__}: {error}")


def _update(
    kit: prepare.Kit, catalogue: Catalogue, lock: Lock, controls: Mapping[str, Control], reason: str | None
) -> None:
    path = kit.claims / default_path().name
    checks = checks_by_claim(kit.suites)
    if foreign := sorted(set(checks) - set(catalogue.claims)):
        fail(f"the suites hold checks of {', '.join(foreign)}, which the catalogue does not know")
    try:
        updated = update(lock, catalogue, checks, _offered(catalogue, controls, checks), reason)
        write_text(path, render_lock(updated))
    except BadLock as error:
        fail(str(error))
    except OSError as error:
        fail(f"can't write {path}: {error.strerror}")
    built = [one for one in updated.claims.values() if not one.planned]
    number = sum(len(one.checks) for one in built)
    bare = [name for name, one in updated.claims.items() if not one.planned and one.control is None]
    console().print(
        f"{path.name}: {len(built)} claims with {number} checks, {len(updated.claims) - len(built)} planned"
    )
    if bare:
        console().print(f"without a negative control, so never Passed: {', '.join(bare)}")


def _offered(
    catalogue: Catalogue, controls: Mapping[str, Control], checks: Mapping[str, Iterable[str]]
) -> dict[str, list[str]]:
    """Claim to the defects that one of its checks has to catch; those that the catalogue names come first."""
    offered: dict[str, list[Control]] = defaultdict(list)
    for control in controls.values():
        if (
            control.kind == "defect"
            and control.refutes
            and (control.caught_by or "") in checks.get(control.refutes, ())
        ):
            offered[control.refutes].append(control)
    named = {name: claim.controls for name, claim in catalogue.claims.items()}
    return {
        name: sorted((one.id for one in defects), key=lambda one: (*named[name], one).index(one))
        for name, defects in offered.items()
    }
