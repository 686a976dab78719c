"""From evidence to verdicts: pure functions of the file, so that every reader can compute them again.

Owns the rules (docs/architecture.md, "Evidence and verdicts"); must not read files, run anything or know the clock.
Each rule of `_RULES` answers with a verdict or passes on; what no rule stops is Passed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from leaseproof.claims.catalogue import TIERS
from leaseproof.evidence.model import (
    CheckSeen,
    ClaimRow,
    Code,
    ControlSeen,
    Environment,
    Evidence,
    Fact,
    InEnvironment,
    PlannedControl,
    RecordRow,
    Result,
    Summary,
    Verdict,
    clip,
)

SUBJECT: Final = "subject"
MAIN: Final = "main"

WORST: Final[tuple[Result, ...]] = ("Failed", "Inconclusive", "Stale", "Not run", "Passed")
"""From the worst to the best; a claim's own result is the worst of its environments."""

_NOT_TRIED_HERE: Final[frozenset[Code]] = frozenset({"not_selected", "tier"})
"""Another run of the same environment may fill these in."""


@dataclass(frozen=True)
class Row:
    """One claim in one environment, as the rules look at it."""

    evidence: Evidence
    claim: ClaimRow
    environment: Environment

    @cached_property
    def unsound(self) -> frozenset[str]:
        """Processes whose facts decide nothing: their log is unfinished, missing, or counts other results."""
        counted = Counter(fact.process for fact in self.environment.facts if fact.outcome != "unfinished")
        logs = Counter(log.process for log in self.environment.logs)
        sound = {
            log.process
            for log in self.environment.logs
            if log.state == "closed" and log.finished == counted[log.process] and logs[log.process] == 1
        }
        return frozenset({MAIN, *logs, *(fact.process for fact in self.environment.facts)} - sound)

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """What checks of this claim found on the subject."""
        return tuple(fact for fact in self.environment.facts if fact.system == SUBJECT and self.claim.id in fact.claims)

    @cached_property
    def controls(self) -> tuple[PlannedControl, ...]:
        """The negative controls of this run's plan that are there for this claim."""
        return tuple(
            control
            for control in self.environment.controls
            if control.kind == "defect" and (control.refutes == self.claim.id or control.id == self.claim.control)
        )

    def check_id(self, fact: Fact) -> str:
        """The check's id as this claim's checks.lock entry has it."""
        return clip(f"{self.claim.id} {fact.check}", 300)

    @cached_property
    def controls_seen(self) -> tuple[ControlSeen, ...]:
        """What became of each of those controls."""
        return tuple(_control_seen(self, control) for control in self.controls)

    @cached_property
    def verdict(self) -> Verdict:
        """What the first rule that applies says, the state of the subject aside."""
        for rule in _RULES:
            if (found := rule(self)) is not None:
                return found
        caught = ", ".join(f"{one.id} caught ({one.because})" for one in self.controls_seen)
        return Verdict(result="Passed", code="passed", reason=clip(f"{_count(self.facts, 'check')} passed; {caught}"))


def recompute(evidence: Evidence) -> Evidence:
    """The same evidence with every derived field computed from what it states, and its digest."""
    claims = tuple(_claim(evidence, claim) for claim in evidence.claims)
    records = tuple(_record(record, claims) for record in evidence.records)
    derived = {"claims": claims, "records": records, "summary": _summary(evidence, claims)}
    return evidence.model_copy(update=derived).sealed()


def problems(evidence: Evidence) -> list[str]:
    """Where what the file states differs from what follows from it; empty when all is as it should be."""
    found = []
    if evidence.sha256 != evidence.digest():
        found.append("the file's digest is not that of its content: it was changed after it was written")
    found += _head(evidence)
    again = recompute(evidence)
    for stated, computed in zip(evidence.claims, again.claims, strict=True):
        if (stated.result, stated.reason) != (computed.result, computed.reason):
            found.append(
                f"{stated.id}: states {stated.result} ({stated.reason}), "
                f"but it follows {computed.result} ({computed.reason})"
            )
        elif stated != computed:
            found.append(f"{stated.id}: details of the row differ from what follows from the facts")
    for row, computed_row in zip(evidence.records, again.records, strict=True):
        if row != computed_row:
            found.append(f"record {row.id}: states {row.result}, but it follows {computed_row.result}")
    if evidence.summary != again.summary:
        found.append("the summary differs from the rows")
    return found


def _head(evidence: Evidence) -> list[str]:
    """The head of a file speaks of one of its environments, and was written by the kit that it names."""
    found = []
    names = ("subject", "kit", "catalogue_sha256", "checks_lock_sha256")
    heads = [tuple(getattr(one, name) for name in names) for one in (evidence, *evidence.environments)]
    if heads[0] not in heads[1:]:
        found.append("subject, kit and rules at the head of the file are together those of none of its environments")
    if (evidence.producer.name, evidence.producer.version) != ("leaseproof", evidence.kit.version):
        found.append("the producer is not the kit at the head of the file")
    return found


def worst(results: Iterable[Result]) -> Result:
    """The worst of these; Not run where there are none."""
    return min(results, key=WORST.index, default="Not run")


# the rules, in the order in which they apply


def _stale(row: Row) -> Verdict | None:
    environment, claim = row.environment, row.claim
    if environment.subject.key != row.evidence.subject.key:
        return _verdict("Stale", "other_subject", f"evidence of another subject: {environment.subject.label}")
    revision = environment.revisions.get(claim.id)
    if revision != claim.revision:
        return _verdict("Stale", "other_revision", f"evidence of revision {revision}, the claim is at {claim.revision}")
    return None


def _not_promised(row: Row) -> Verdict | None:
    for cap in row.claim.requires:
        if (reason := row.evidence.not_promised.get(cap)) is not None:
            return _not_run("not_promised", f"not promised: {cap}: {reason}")
    return None


def _planned(row: Row) -> Verdict | None:
    return _not_run("planned", "planned") if row.claim.planned or not row.claim.expected else None


def _left_out(row: Row) -> Verdict | None:
    tier, selection = row.claim.tier, row.environment.selection
    if selection.claims is not None and row.claim.id not in selection.claims:
        return _not_run("not_selected", "not selected")
    if tier == "static":
        return _not_run("static", "its tier reads the source: at best Inspected")
    if tier in row.environment.tiers:
        return _not_run("tier", f"needs tier {tier}: {row.environment.tiers[tier]}")
    if tier not in selection.tiers:
        return _not_run("not_selected", f"needs tier {tier}: not selected (--tier {tier})")
    return None


def _refuted(row: Row) -> Verdict | None:
    for fact in row.facts:
        if fact.outcome == "refuted" and fact.process not in row.unsound:
            return _verdict("Failed", "refuted", f"{fact.check}: {_because(fact)}")
    return None


def _trouble(row: Row) -> Verdict | None:
    if row.environment.trouble:
        return _inconclusive("trouble", _first_line(row.environment.trouble[0].what))
    if MAIN in row.unsound:
        return _inconclusive("log_unfinished", "the run did not end well: its log is unfinished")
    return None


def _absent(row: Row) -> Verdict | None:
    return None if row.facts else _not_run("absent", "expected check absent")


def _observed(row: Row) -> Verdict | None:
    """Each expected check once and no other, all passed, in logs that decide, in no lower tier."""
    seen = Counter(row.check_id(fact) for fact in row.facts)
    if missing := [check for check in row.claim.expected if not seen[check]]:
        return _inconclusive("missing", f"expected check absent: {', '.join(missing)}")
    if twice := [check for check, times in seen.items() if times > 1]:
        return _inconclusive("duplicate", f"ran more than once: {', '.join(twice)}")
    if unlisted := [check for check in seen if check not in row.claim.expected]:
        return _inconclusive("unlisted", f"not in checks.lock: {', '.join(unlisted)}")
    for fact in row.facts:
        if (found := _undecided(row, fact)) is not None:
            return found
    return None


def _undecided(row: Row, fact: Fact) -> Verdict | None:
    if fact.outcome == "unfinished":
        return _inconclusive("unfinished", f"{fact.check} began and did not finish")
    if fact.process in row.unsound:
        return _inconclusive("log_unfinished", f"{fact.check}: the log of process {fact.process} is unfinished")
    if fact.outcome == "skipped":
        return _inconclusive("skipped", f"{fact.check} was skipped: {_because(fact)}")
    if fact.outcome != "passed":
        return _inconclusive("undecided", f"{fact.check}: {_because(fact)}")
    if fact.tier is not None and TIERS.index(fact.tier) < TIERS.index(row.claim.tier):
        return _inconclusive("wrong_tier", f"{fact.check} ran in tier {fact.tier}, needs tier {row.claim.tier}")
    return None


def _owner(row: Row) -> Verdict | None:
    if row.claim.semantic_owner is None:
        return _inconclusive("owner_not_found", f"the system names no symbol for its {row.claim.owner}")
    if row.claim.inspection.owner is None:
        return _inconclusive("owner_not_found", f"semantic owner {row.claim.semantic_owner} is not in the source")
    return None


def _controls(row: Row) -> Verdict | None:
    """The control that checks.lock names is in the plan, and every control of the plan was caught as it should be."""
    if row.claim.control is None or row.claim.control not in {control.id for control in row.controls}:
        named = f" ({row.claim.control} is not installed)" if row.claim.control else ""
        return _inconclusive("no_control", f"the plan has no negative control for this claim{named}")
    for seen in row.controls_seen:
        if seen.outcome != "caught":
            return _inconclusive("control_not_caught", f"negative control {seen.id}: {seen.detail}")
    return None


_RULES: Final[tuple[Callable[[Row], Verdict | None], ...]] = (
    _stale,
    _planned,
    _not_promised,
    _left_out,
    _refuted,
    _trouble,
    _absent,
    _observed,
    _owner,
    _controls,
)


# controls


def _control_seen(row: Row, control: PlannedControl) -> ControlSeen:
    """Caught when the named check, one that the claim expects, ran once on it and was refuted for the stated reason."""
    facts = [fact for fact in row.environment.facts if fact.system == control.id and fact.check == control.caught_by]
    others = [fact for fact in row.environment.facts if fact.system == control.id and fact.outcome == "refuted"]
    outcome, detail = "errored", ""
    because = facts[0].because if facts else None
    if row.claim.id not in {control.refutes, *control.also}:
        detail = f"it refutes {control.refutes}, not this claim"
    elif f"{row.claim.id} {control.caught_by}" not in row.claim.expected:
        detail = f"{control.caught_by} is no expected check of this claim"
    elif not facts:
        outcome, detail = ("caught_otherwise" if others else "absent"), f"{control.caught_by} did not run on it"
    elif len(facts) > 1:
        detail = f"{control.caught_by} ran on it more than once"
    elif facts[0].process in row.unsound:
        detail = f"the log of process {facts[0].process} is unfinished"
    elif facts[0].outcome == "passed":
        outcome, detail = "missed", f"{control.caught_by} passed on it: the check can't fail for this reason"
    elif facts[0].outcome != "refuted":
        detail = f"{control.caught_by} ended {facts[0].outcome} on it: {_because(facts[0])}"
    elif because is None or because != control.because:
        outcome, detail = "caught_otherwise", f"refuted because of {because}, not of {control.because}"
    else:
        outcome, detail = "caught", clip(_first_line(facts[0].detail))
    return ControlSeen.model_validate(
        {
            "id": control.id,
            "says": control.says,
            "outcome": outcome,
            "by": control.caught_by,
            "because": because,
            "detail": detail,
        }
    )


# rows


def _in_environment(row: Row) -> InEnvironment:
    verdict, provisional = row.verdict, None
    if verdict.result != "Stale" and (block := _not_evidence(row.environment)) is not None:
        verdict, provisional = block, verdict
    return InEnvironment(
        environment=row.environment.id,
        run=row.environment.run,
        result=verdict.result,
        code=verdict.code,
        reason=verdict.reason,
        provisional=provisional,
        checks=tuple(
            CheckSeen(
                id=row.check_id(fact),
                outcome=fact.outcome,
                because=fact.because,
                detail=fact.detail,
                seconds=fact.seconds,
                seed=fact.seed,
                notes=fact.notes,
                attachments=fact.attachments,
            )
            for fact in row.facts
        ),
        controls=row.controls_seen,
    )


def _not_evidence(environment: Environment) -> Verdict | None:
    """Only a clean commit, or a distribution as it was installed, is evidence: subject (before and after) and kit."""
    before, after = environment.subject, environment.subject_after
    if before.kind == "unidentified":
        return _not_run("unidentified", f"subject not identified: {before.reason}")
    if after is None or after.key != before.key:
        return _not_run("uncommitted", "the subject changed during the run")
    if not (before.clean and after.clean):
        return _not_run("uncommitted", "uncommitted changes")
    if not environment.kit.clean:
        return _not_run("kit", f"the kit is not as it was committed or installed: {environment.kit.label}")
    return None


def _claim(evidence: Evidence, claim: ClaimRow) -> ClaimRow:
    rows = [Row(evidence, claim, environment) for environment in evidence.environments]
    seen = tuple(_in_environment(row) for row in rows)
    verdict = _over(seen, [one.verdict for one in seen])
    provisional = [one.provisional or one.verdict for one in seen]
    planned = dict.fromkeys(control.id for row in rows for control in row.controls)
    return claim.model_copy(
        update={
            "inspected": _inspected(claim),
            "planned_controls": tuple(planned),
            "result": verdict.result,
            "code": verdict.code,
            "reason": verdict.reason,
            "provisional": _over(seen, provisional) if any(one.provisional for one in seen) else None,
            "by_environment": seen,
        }
    )


def _inspected(claim: ClaimRow) -> bool:
    found = claim.inspection
    return bool(claim.expected) and found.owner is not None and bool(found.checks) and not found.missing


def _over(seen: Sequence[InEnvironment], verdicts: Sequence[Verdict]) -> Verdict:
    """The worst over environments; runs of one environment complete each other, and are shown where they disagree."""
    named: list[tuple[str, Verdict]] = []
    for environment in dict.fromkeys(one.environment for one in seen):
        runs = [
            (one.run, verdict) for one, verdict in zip(seen, verdicts, strict=True) if one.environment == environment
        ]
        tried = [(run, verdict) for run, verdict in runs if verdict.code not in _NOT_TRIED_HERE] or runs
        named.append((environment, _over_runs(tried)))
    if len(named) == 1:
        return named[0][1]
    place, verdict = min(named, key=lambda pair: WORST.index(pair[1].result))
    if len({one for _, one in named}) == 1:
        return verdict
    return verdict.model_copy(update={"reason": clip(f"{place}: {verdict.reason}")})


def _over_runs(runs: Sequence[tuple[str, Verdict]]) -> Verdict:
    verdict = min((one for _, one in runs), key=lambda one: WORST.index(one.result))
    if len({one.result for _, one in runs}) == 1:
        return verdict
    shown = "; ".join(f"run {run} {one.result} ({one.reason})" for run, one in runs)
    return verdict.model_copy(update={"reason": clip(f"runs of one environment disagree: {shown}")})


def _record(record: RecordRow, claims: Sequence[ClaimRow]) -> RecordRow:
    """Passed only when every claim of the record is; a record names claims that are there, else it is Inconclusive."""
    by_id = {claim.id: claim for claim in claims}
    rows = [by_id[one] for one in record.claims if one in by_id]
    result = worst(claim.result for claim in rows)
    if len(rows) != len(record.claims):
        result = worst([result, "Inconclusive"])
    open_ = [claim for claim in rows if claim.result != "Passed"]
    reason = f"{len(rows) - len(open_)} of {len(record.claims)} claims Passed"
    if open_:
        first = min(open_, key=lambda claim: WORST.index(claim.result))
        rest = f", and {len(open_) - 1} more" if len(open_) > 1 else ""
        reason += f"; {first.id} {first.result} ({first.reason}){rest}"
    provisional = None
    if any(claim.provisional for claim in rows):
        provisional = worst(claim.provisional.result if claim.provisional else claim.result for claim in rows)
    return record.model_copy(update={"result": result, "reason": clip(reason), "provisional": provisional})


def _summary(evidence: Evidence, claims: Sequence[ClaimRow]) -> Summary:
    core = [claim for claim in claims if claim.kind == "core"]
    results = Counter(claim.result for claim in claims)
    provisional = None
    if any(claim.provisional for claim in claims):
        counted = Counter(claim.provisional.result if claim.provisional else claim.result for claim in claims)
        provisional = {result: counted[result] for result in reversed(WORST)}
    return Summary(
        core=len(core),
        core_applying=sum(not set(claim.requires) & set(evidence.not_promised) for claim in core),
        results={result: results[result] for result in reversed(WORST)},
        provisional=provisional,
    )


# words


def _verdict(result: Result, code: Code, reason: str) -> Verdict:
    return Verdict(result=result, code=code, reason=clip(reason))


def _inconclusive(code: Code, reason: str) -> Verdict:
    return _verdict("Inconclusive", code, reason)


def _not_run(code: Code, reason: str) -> Verdict:
    return _verdict("Not run", code, reason)


def _because(fact: Fact) -> str:
    detail = _first_line(fact.detail)
    if fact.because and detail:
        return detail if detail.startswith(fact.because) else f"{fact.because}: {detail}"
    return fact.because or detail or f"{fact.outcome}, without a reason"


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 300 else line[:299] + "…"


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
