"""From a run to its evidence: a projection of plan, fact logs, catalogue, checks.lock and subject.

Owns what is taken from where; must not judge (verdicts do) or read the disk. Logs are believed as far as they are
whole: one without its `closed`, of another plan, or with a line that is no fact is unfinished and decides nothing.
"""

import os
import platform
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from leaseproof.claims.catalogue import Catalogue, Claim, Tier
from leaseproof.claims.lock import Lock
from leaseproof.controls.registry import Control
from leaseproof.evidence.facts import Log as ReadLog
from leaseproof.evidence.facts import bounded
from leaseproof.evidence.model import (
    ClaimRow,
    Environment,
    Evidence,
    Fact,
    Inspection,
    Log,
    PlannedControl,
    Producer,
    RecordRow,
    RemovedCheck,
    Selection,
    Server,
    Subject,
    Trouble,
    clip,
    utc,
)
from leaseproof.evidence.plan import SUBJECT, Plan
from leaseproof.evidence.redact import redact, redact_json
from leaseproof.evidence.subject import Identity
from leaseproof.evidence.verdicts import recompute

_HOSTED_RUN: Final = "COLD-2 runs the CI workflow's own commands here; a hosted run of the workflow is outside of it."
_OF_CATALOGUE: Final = (
    *("revision", "kind", "records", "must", "failure_surface", "negative_case", "tier", "requires"),
)
_UNSIGNED: Final = "This file is unsigned: its digests find accidents, not tampering."


@dataclass(frozen=True)
class Host:
    """The machine and the Python that ran the checks."""

    python: str = field(default_factory=platform.python_version)
    platform: str = field(default_factory=lambda: f"{platform.system()} {platform.release()} {platform.machine()}")
    cores: int | None = field(default_factory=os.cpu_count)


@dataclass(frozen=True)
class Promises:
    """What the evidence takes from the system: what it does not promise, and the symbols that own side effects."""

    not_promised: Mapping[str, str]
    owners: Mapping[str, str]


def project(
    *,
    plan: Plan,
    logs: Sequence[ReadLog],
    catalogue: Catalogue,
    lock: Lock,
    promises: Promises,
    before: Identity,
    after: Identity | None,
    kit: Identity,
    kit_after: Identity | None,
    controls: Mapping[str, Control],
    inspections: Mapping[str, Inspection],
    tiers: Mapping[Tier, str | None],
    selection: Selection,
    plugins: Sequence[str] = (),
    host: Host | None = None,
    environment: str | None = None,
    footnotes: Iterable[str] = (),
) -> Evidence:
    """The evidence of one run, verdicts included.

    before, after, kit, kit_after: the subject and the kit as they were identified before and after the run.
    tiers: each tier that can't run here with the reason (None: it can). selection: what the user asked for.
    environment: its id; by default of the PostgreSQL that took part, such as "pg18".
    """
    host = host or Host()
    imported = _imported(logs)
    subject = before.with_imported(imported, kit)
    kit_subject = _kit(kit, kit_after, imported)
    read = [_log(log, plan) for log in logs]
    started, finished = _span(logs)
    servers = _servers(logs)
    run = Environment(
        id=environment or _environment_id(servers),
        run=plan.run,
        mode=plan.mode,
        python=clip(host.python, 300),
        platform=clip(host.platform, 300),
        cores=host.cores,
        postgresql=servers.get("postgresql"),
        redis=servers.get("redis"),
        tiers={tier: _word(reason) for tier, reason in tiers.items() if reason is not None},
        plugins=tuple(_word(plugin) for plugin in plugins),
        seed=plan.seed,
        subject=subject,
        subject_after=after.with_imported(imported, kit) if after else None,
        kit=kit_subject,
        catalogue_sha256=catalogue.digest,
        checks_lock_sha256=lock.digest,
        revisions={claim.id: claim.revision for claim in catalogue.claims.values()},
        selection=selection,
        plan_sha256=plan.sha256,
        controls=tuple(_controls(plan, controls)),
        logs=tuple(log for log, _ in read),
        trouble=(*_trouble(logs), *_elsewhere(logs, before)),
        facts=tuple(
            fact for log, (_, believed) in zip(logs, read, strict=True) for fact in _facts(believed, log, lock)
        ),
        started=started,
        finished=finished,
    )
    notes = [_UNSIGNED, *([_HOSTED_RUN] if "COLD-2" in catalogue.claims else []), *footnotes]
    stated = Evidence(
        subject=subject,
        kit=kit_subject,
        producer=Producer(name="leaseproof", version=kit_subject.version),
        catalogue_sha256=catalogue.digest,
        checks_lock_sha256=lock.digest,
        not_promised={_word(cap): _text(reason) for cap, reason in promises.not_promised.items()},
        environments=(run,),
        claims=tuple(
            claim_row(claim, lock, promises.owners, plan.system, inspections.get(claim.id, Inspection()))
            for claim in catalogue.claims.values()
        ),
        records=tuple(RecordRow(id=row.id, title=row.title, claims=row.claims) for row in catalogue.records),
        removed=tuple(RemovedCheck(check=one.check, revision=one.revision, reason=one.reason) for one in lock.removed),
        footnotes=tuple(_text(note) for note in notes),
        started=started,
        finished=finished,
    )
    return recompute(stated)


def claim_row(claim: Claim, lock: Lock, owners: Mapping[str, str], system: str, inspection: Inspection) -> ClaimRow:
    """What a row states of its claim; the rest is derived."""
    expected = lock.claims[claim.id]
    symbol = owners.get(claim.semantic_owner)
    return ClaimRow(
        id=claim.id,
        revision=claim.revision,
        kind=claim.kind,
        records=claim.records,
        must=claim.must,
        failure_surface=claim.failure_surface,
        owner=claim.semantic_owner,
        semantic_owner=None if symbol is None else clip(symbol, 300),
        owner_digest=inspection.owner.sha256 if inspection.owner else None,
        command=clip(f"leaseproof verify --system {shlex.quote(system)} --claim {claim.id}", 300),
        negative_case=claim.negative_case,
        tier=claim.tier,
        requires=tuple(cap.value for cap in claim.requires),
        planned=expected.planned,
        expected=expected.checks,
        control=expected.control,
        inspection=inspection,
    )


def restated(
    plan: Plan, logs: Sequence[ReadLog], lock: Lock
) -> tuple[tuple[Log, ...], tuple[Trouble, ...], tuple[Fact, ...]]:
    """What these logs of a run state, as its evidence has it."""
    read = [_log(log, plan) for log in logs]
    facts = tuple(fact for log, (_, believed) in zip(logs, read, strict=True) for fact in _facts(believed, log, lock))
    return tuple(log for log, _ in read), tuple(_trouble(logs)), facts


def differences(evidence: Evidence, catalogue: Catalogue, lock: Lock) -> list[str]:
    """Where rows that say to come of this catalogue and this checks.lock don't; empty for evidence of others."""
    found = []
    same_catalogue = evidence.catalogue_sha256 == catalogue.digest
    same_lock = evidence.checks_lock_sha256 == lock.digest
    if same_catalogue and [row.id for row in evidence.claims] != list(catalogue.claims):
        found.append("the rows are not the claims of the catalogue that the file names")
    if same_catalogue and [(one.id, one.title, one.claims) for one in evidence.records] != [
        (one.id, one.title, one.claims) for one in catalogue.records
    ]:
        found.append("the records are not those of the catalogue that the file names")
    for row in evidence.claims:
        claim, expected = catalogue.claims.get(row.id), lock.claims.get(row.id)
        if same_catalogue and claim is not None and not _worded(row, claim):
            found.append(f"{row.id}: is not worded as in the catalogue that the file names")
        if same_lock and expected is not None:
            listed = (expected.checks, expected.planned, expected.control)
            if (row.expected, row.planned, row.control) != listed:
                found.append(f"{row.id}: does not expect what the checks.lock that the file names lists")
    return found


def _worded(row: ClaimRow, claim: Claim) -> bool:
    """Whether the row says what the catalogue says of its claim."""
    return row.owner == claim.semantic_owner and all(getattr(row, one) == getattr(claim, one) for one in _OF_CATALOGUE)


def _log(log: ReadLog, plan: Plan) -> tuple[Log, tuple[dict[str, Any], ...]]:
    """The log with its state, and the facts of it that are of this plan."""
    opened = log.facts[0] if log.facts else {}
    ours = (opened.get("run"), opened.get("plan_sha256")) == (plan.run, plan.sha256)
    finished = log.of("finished")
    whole = ours and log.complete and all(_fact(fact, log.process) is not None for fact in finished)
    return (
        Log(
            process=_word(log.process),
            sha256=log.sha256,
            state="closed" if whole else "unfinished",
            finished=len(finished),
        ),
        log.facts if ours else (),
    )


def _facts(believed: Sequence[Mapping[str, Any]], log: ReadLog, lock: Lock) -> Iterator[Fact]:
    """Every result, and every beginning without one."""
    begun: Counter[tuple[str, str]] = Counter()
    for raw in believed:
        key = (_word(raw.get("system")), _word(raw.get("check")))
        if raw["kind"] == "started":
            begun[key] += 1
        elif raw["kind"] == "finished" and (fact := _fact(raw, log.process)) is not None:
            begun[key] -= 1
            yield fact
    for (system, check), times in begun.items():
        claims = tuple(claim for claim, expected in lock.claims.items() if check in expected.tests)
        for _ in range(max(times, 0)):
            yield Fact(system=system, check=check, claims=claims, outcome="unfinished", process=_word(log.process))


def _fact(raw: Mapping[str, Any], process: str) -> Fact | None:
    """The result that a line of a log holds; None where it holds none."""
    because = raw.get("because")
    known = {
        **{name: raw[name] for name in ("outcome", "seconds", "seed", "tier", "attachments") if name in raw},
        "claims": _texts(raw.get("claims")),
        "because": None if because is None else _word(because),
        "detail": _text(raw.get("detail", "")),
        "notes": redact_json(bounded(raw.get("notes") or {})),
        "system": _word(raw.get("system")),
        "check": _word(raw.get("check")),
        "process": _word(process),
    }
    try:
        return Fact.model_validate(known)
    except ValidationError:
        return None


def _controls(plan: Plan, controls: Mapping[str, Control]) -> Iterator[PlannedControl]:
    """The controls that the plan tries."""
    for system in dict.fromkeys(item.system for item in plan.items if item.system != SUBJECT):
        if (control := controls.get(system)) is not None:
            yield PlannedControl(
                id=control.id,
                kind=control.kind,
                says=_text(control.says),
                refutes=control.refutes,
                caught_by=control.caught_by,
                because=control.because,
                also=tuple(sorted(control.also)),
            )


def _trouble(logs: Sequence[ReadLog]) -> Iterator[Trouble]:
    for log in logs:
        for fact in log.of("trouble"):
            yield Trouble(process=_word(log.process), what=_text(fact.get("what", "")))


def _imported(logs: Sequence[ReadLog]) -> set[tuple[str, str]]:
    """Every file that a process imported, with the digests that it read there."""
    return {
        (str(name), str(digest))
        for log in logs
        for fact in log.of("modules")
        if isinstance(files := fact.get("files"), dict)
        for name, digest in files.items()
    }


def _kit(before: Identity, after: Identity | None, imported: set[tuple[str, str]]) -> Subject:
    """The kit before the run, not clean where it was another one after it."""
    kit = before.with_imported(imported)
    then = after.with_imported(imported) if after else None
    if then == kit:
        return kit
    changes = then.changes if then else ()
    return kit.model_copy(update={"clean": False, "changes": ("changed during the run", *changes)})


def _elsewhere(logs: Sequence[ReadLog], before: Identity) -> Iterator[Trouble]:
    """A process that imported the system from another file than the one that was identified."""
    for log in logs:
        for fact in log.of("modules"):
            file = fact.get("system")
            if file is not None and before.file is not None and os.path.realpath(str(file)) != str(before.file):
                what = f"tried the system of {file}, while that of {before.file} was identified"
                yield Trouble(process=_word(log.process), what=_text(what))


def _servers(logs: Sequence[ReadLog]) -> dict[str, Server]:
    """The servers that the logs name; the first description of each counts, since a run has one of each."""
    found: dict[str, Server] = {}
    for log in logs:
        for fact in log.of("servers"):
            described = fact.get("servers")
            if not isinstance(described, dict):
                continue
            for name in ("postgresql", "redis"):
                one = described.get(name)
                if isinstance(one, dict) and name not in found:
                    settings = one.get("settings_sha256")
                    found[name] = Server(
                        version=_word(one.get("version")),
                        settings_sha256=settings if isinstance(settings, str) and len(settings) == 64 else None,
                        source="embedded" if described.get("embedded") else "given",
                    )
    return found


def _environment_id(servers: Mapping[str, Server]) -> str:
    if "postgresql" not in servers:
        return "no servers"
    return "pg" + servers["postgresql"].version.partition(" ")[0].partition(".")[0]


def _span(logs: Sequence[ReadLog]) -> tuple[datetime, datetime]:
    """When the first fact was written, and the last; the beginning of time where there are none."""
    times = [time for log in logs for fact in log.facts if (time := utc(fact.get("at"))) is not None]
    unknown = datetime.fromtimestamp(0, UTC)
    return min(times, default=unknown), max(times, default=unknown)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_word(one) for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _word(value: object) -> str:
    return clip(redact(str(value)), 300)


def _text(value: object) -> str:
    return clip(redact(str(value)))
