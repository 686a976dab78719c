"""`leaseproof verify`: tries a system and writes the evidence. Owns the order of the steps and the exit code."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from leaseproof.capabilities import Cap
from leaseproof.claims.catalogue import Claim, Tier
from leaseproof.cli import FAILED, INCONCLUSIVE, options, prepare, table
from leaseproof.cli.execute import execute
from leaseproof.cli.terminal import console, fail
from leaseproof.evidence.inspect import inspect_claims, module_file
from leaseproof.evidence.model import Evidence, Selection
from leaseproof.evidence.plan import Plan, items_for_verify, shuffled
from leaseproof.evidence.project import Promises, project
from leaseproof.evidence.redact import redact
from leaseproof.evidence.subject import Identity, identify, identify_kit
from leaseproof.report.files import FORMATS, write_reports
from leaseproof.servers.address import new_run
from leaseproof.tiers import Given, chosen, probe, reasons

Tiers = Annotated[
    list[str] | None,
    typer.Option("--tier", metavar="TIER|all", help="Tiers to run; by default those that need nothing but Python."),
]
NEAREST = 3
"""Sets of capabilities that are named where no claim was tried."""
PARTIAL = "partial"
"""Folder, among the reports, of evidence that replaces no whole run's: of picked claims, or of nothing tried."""
EVIDENCE = tuple(f"evidence.{kind}" for kind in FORMATS)
"""What a run leaves among the reports, in the place of an earlier run's."""

Claims = Annotated[list[str] | None, typer.Option("--claim", metavar="ID", help="Try this claim alone (repeatable).")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 3 for anything Not run other than 'not promised'.")]


def verify(
    context: typer.Context,
    system: options.System = None,
    tier: Tiers = None,
    claim: Claims = None,
    workers: options.Workers = "auto",
    strict: Strict = False,
    seed: options.Seed = 0,
    shuffle: options.Shuffle = 0,
    reports: options.Reports = Path("reports"),
    dsn: options.Dsn = None,
    redis_url: options.RedisUrl = None,
    pg_bin: options.PgBin = None,
) -> None:
    """Try every claim that this machine can run; write reports/evidence.{json,html,md} and print the matrix.

    With --claim, or where nothing can be tried, the evidence goes to reports/partial.
    """
    given = Given(dsn, redis_url, pg_bin)
    tiers = _tiers(tier or [])
    replaced = [f"{PARTIAL}/{name}" if claim else name for name in EVIDENCE]
    ready = prepare.ready(context, system, workers, reports, replaced)
    prepare.known("claim", claim or [], ready.catalogue.claims, "`leaseproof claims`")
    probes = probe(given)
    wanted = [
        one
        for one in ready.catalogue.claims.values()
        if (not claim or one.id in claim) and _can_be_tried(one, ready, tiers)
    ]
    place = prepare.reports(context, ready.folder / PARTIAL) if claim or not wanted else ready.folder
    prepare.remove(place, EVIDENCE)  # from here on, what this run leaves must not be an earlier run's
    picked = [one for one in wanted if probes[one.tier].can_run]
    if wanted and not picked:
        lacking = {one.tier: probes[one.tier].lacking for one in wanted}
        fail("nothing could start: " + "; ".join(f"tier {tier}: {why}" for tier, why in lacking.items()))
    variables = prepare.servers(given)
    loaded, kit = ready.loaded, ready.kit

    before = identify(loaded.file, loaded.system.name, loaded.system.version)
    kit_before = identify_kit(kit.suites)
    expected = {one.id: ready.lock.claims[one.id].tests for one in picked}
    named = {one.id: ready.lock.claims[one.id].control or "" for one in picked}
    plan = Plan(
        run=new_run(),
        system=loaded.name,
        subject=loaded.system.name,
        mode="verify",
        items=shuffled(items_for_verify(expected, named, ready.controls), shuffle),
        seed=seed,
        shuffle=shuffle,
        dsn=dsn and redact(dsn),
        redis_url=redis_url and redact(redis_url),
    )
    logs = execute(plan, ready.folder, kit, prepare.workers(workers, len(plan.items)), variables)
    evidence = project(
        plan=plan,
        logs=logs,
        catalogue=ready.catalogue,
        lock=ready.lock,
        promises=Promises({cap.value: reason for cap, reason in _left_out(ready).items()}, loaded.system.owners),
        before=before,
        after=identify(loaded.file, loaded.system.name, loaded.system.version),
        kit=kit_before,
        kit_after=identify_kit(kit.suites),
        controls=ready.controls,
        inspections=inspect_claims(
            ready.catalogue, ready.lock, _own(loaded.system.owners, before), before.root, kit.suites
        ),
        tiers=reasons(probes),
        selection=Selection(claims=tuple(claim) if claim else None, tiers=tiers),
        plugins=kit.plugins,
    )
    try:
        written = write_reports(evidence, place)
    except OSError as error:
        fail(f"can't write the evidence to {place}: {error.strerror}; nothing is decided", INCONCLUSIVE)
    table.show(evidence, console(), written["html"])
    if not _tried(evidence):
        fail(f"no claim was tried, so nothing is decided{_nearest(evidence)}", INCONCLUSIVE)
    raise typer.Exit(exit_code(evidence, strict=strict))


def exit_code(evidence: Evidence, *, strict: bool) -> int:
    """1: a claim Failed, provisionally too. 3: one Inconclusive, Stale or absent, none tried, or with `strict` one Not
    run. Else 0."""
    results = {row.result for row in evidence.claims}
    results |= {row.provisional.result for row in evidence.claims if row.provisional}
    codes = {row.code for row in evidence.claims} | {row.provisional.code for row in evidence.claims if row.provisional}
    if "Failed" in results:
        return FAILED
    if results & {"Inconclusive", "Stale"} or "absent" in codes or not _tried(evidence):
        return INCONCLUSIVE
    left = [row for row in evidence.claims if row.result == "Not run" and row.code != "not_promised"]
    return INCONCLUSIVE if strict and left else 0


def _tried(evidence: Evidence) -> bool:
    return any(seen.checks for row in evidence.claims for seen in row.by_environment)


def _nearest(evidence: Evidence) -> str:
    """The capabilities that would make claims apply: those sets of them that are the smallest."""
    claims: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in evidence.claims:
        lacking = tuple(cap for cap in row.requires if cap in evidence.not_promised)
        if lacking and row.expected:
            claims[lacking].append(row.id)
    nearest = sorted(claims, key=lambda lacking: (len(lacking), -len(claims[lacking])))[:NEAREST]
    told = [f"{' and '.join(lacking)} ({', '.join(claims[lacking])})" for lacking in nearest]
    return f"; claims would apply to a system that also promises {', or '.join(told)}" if told else ""


def _tiers(names: list[str]) -> tuple[Tier, ...]:
    try:
        return chosen(names)
    except ValueError as error:
        fail(str(error))


def _left_out(ready: prepare.Ready) -> dict[Cap, str]:
    return dict(ready.loaded.system.not_promised)


def _own(owners: Mapping[str, str], subject: Identity) -> dict[str, str]:
    """The owners whose source is part of what was identified."""
    files = {name: module_file(symbol.partition(":")[0]) for name, symbol in owners.items()}
    return {name: symbol for name, symbol in owners.items() if (file := files[name]) and subject.holds(file)}


def _can_be_tried(claim: Claim, ready: prepare.Ready, tiers: Sequence[Tier]) -> bool:
    """Built, promised, and in a chosen tier."""
    promised = set(claim.requires).isdisjoint(_left_out(ready))
    return promised and not ready.lock.claims[claim.id].planned and claim.tier in tiers
