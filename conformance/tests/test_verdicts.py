"""Nothing but whole evidence reads Passed. Verdicts follow from the file, by the rules of docs/architecture.md."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import (
    CATALOGUE,
    CHECKS,
    CLEAN,
    DIRTY,
    control_of,
    finished,
    good_facts,
    inspections,
    lock_of,
    log_of,
    plan_of,
    row,
    sample,
)

from leaseproof.evidence.model import Environment, Evidence, Inspection, Selection, Subject
from leaseproof.evidence.project import Promises
from leaseproof.evidence.verdicts import problems, recompute, worst

CLAIM = "LOCK-1"
FIRST, SECOND = CHECKS[CLAIM]
CONTROL = control_of(CLAIM)
GOOD = sample()


def facts_but(change: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    facts = good_facts()
    change(facts)
    return facts


def fact(facts: list[dict[str, Any]], check: str, system: str = "subject") -> dict[str, Any]:
    return next(one for one in facts if (one["check"], one["system"]) == (check, system))


def verdict(evidence: Evidence, claim: str = CLAIM) -> tuple[str, str]:
    found = row(evidence, claim)
    return found.result, found.code


def test_whole_evidence_passes_and_says_why() -> None:
    found = row(GOOD, CLAIM)
    assert (found.result, found.reason) == ("Passed", "2 checks passed; breaks_lock_1 caught (55P03)")
    assert {one.id for one in GOOD.claims if one.result == "Passed"} == set(CHECKS)
    assert problems(GOOD) == []


def outcome_of(test: str, on: str = "subject", /, **changes: Any) -> Callable[[list[dict[str, Any]]], object]:
    return lambda facts: fact(facts, test, on).update(changes)


def without(check: str, system: str = "subject") -> Callable[[list[dict[str, Any]]], object]:
    return lambda facts: facts.remove(fact(facts, check, system))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (outcome_of(FIRST, outcome="refuted", because="did_not_wait"), ("Failed", "refuted")),
        (outcome_of(FIRST, outcome="inconclusive", detail="deadline"), ("Inconclusive", "undecided")),
        (outcome_of(FIRST, outcome="skipped"), ("Inconclusive", "skipped")),
        (outcome_of(FIRST, tier="static"), ("Inconclusive", "wrong_tier")),
        (outcome_of(FIRST, claims=["LOCK-2"]), ("Inconclusive", "missing")),
        (outcome_of(FIRST, check="test_renamed"), ("Inconclusive", "missing")),
        (without(SECOND), ("Inconclusive", "missing")),
        (lambda facts: facts.append(finished("test_new", CLAIM)), ("Inconclusive", "unlisted")),
        (lambda facts: facts.append(finished(FIRST, CLAIM)), ("Inconclusive", "duplicate")),
        (without(FIRST, CONTROL.id), ("Inconclusive", "control_not_caught")),
        (outcome_of(FIRST, CONTROL.id, outcome="passed"), ("Inconclusive", "control_not_caught")),
        (outcome_of(FIRST, CONTROL.id, outcome="inconclusive"), ("Inconclusive", "control_not_caught")),
        (outcome_of(FIRST, CONTROL.id, because="40P01"), ("Inconclusive", "control_not_caught")),
        (outcome_of(FIRST, CONTROL.id, because=None), ("Inconclusive", "control_not_caught")),
        (outcome_of(FIRST, CONTROL.id, check=SECOND), ("Inconclusive", "control_not_caught")),
        (
            lambda facts: facts.append(fact(facts, FIRST, CONTROL.id)),
            ("Inconclusive", "control_not_caught"),
        ),
        (
            lambda facts: facts.append({"kind": "started", "system": "subject", "check": FIRST}),
            ("Inconclusive", "duplicate"),
        ),
        (lambda facts: facts.append({"kind": "trouble", "what": "a worker crashed"}), ("Inconclusive", "trouble")),
        (
            lambda facts: facts.extend([*[finished(FIRST, CLAIM, outcome="refuted")] * 2]),
            ("Failed", "refuted"),
        ),
    ],
)
def test_what_one_change_makes_of_it(change: Callable[[list[dict[str, Any]]], object], wanted: tuple[str, str]) -> None:
    assert verdict(sample(facts_but(change))) == wanted


def test_a_claim_none_of_whose_checks_ran_is_not_run() -> None:
    evidence = sample([one for one in good_facts() if one["claims"] != [CLAIM]])
    assert (row(evidence, CLAIM).result, row(evidence, CLAIM).reason) == ("Not run", "expected check absent")
    assert verdict(evidence, "LOCK-2") == ("Passed", "passed")


def test_a_check_that_began_and_did_not_finish_is_inconclusive() -> None:
    facts = [one for one in good_facts() if (one["system"], one["check"]) != ("subject", FIRST)]
    evidence = sample([*facts, {"kind": "started", "system": "subject", "check": FIRST}])
    assert verdict(evidence) == ("Inconclusive", "unfinished")
    assert row(evidence, CLAIM).by_environment[0].checks[-1].outcome == "unfinished"


def test_a_run_that_did_not_end_well_decides_nothing() -> None:
    evidence = sample(logs=[log_of(plan_of(), good_facts(), closed=False)])
    assert {verdict(evidence, claim) for claim in CHECKS} == {("Inconclusive", "log_unfinished")}


def test_a_refutation_in_an_unfinished_log_decides_nothing() -> None:
    facts = facts_but(outcome_of(FIRST, outcome="refuted", because="x"))
    evidence = sample(logs=[log_of(plan_of(), facts, closed=False)])
    assert verdict(evidence) == ("Inconclusive", "log_unfinished")


def test_an_unfinished_worker_takes_its_claims_alone() -> None:
    lost = [one for one in good_facts() if one["claims"] == [CLAIM]]
    kept = [one for one in good_facts() if one["claims"] != [CLAIM]]
    plan = plan_of()
    logs = [log_of(plan, []), log_of(plan, kept, "gw0"), log_of(plan, lost, "gw1", closed=False)]
    evidence = sample(logs=logs)
    assert verdict(evidence) == ("Inconclusive", "log_unfinished")
    assert verdict(evidence, "LOCK-2") == ("Passed", "passed")


def test_a_log_of_another_plan_decides_nothing() -> None:
    foreign = sample(logs=[log_of(plan_of(run="r9999999"), good_facts())])
    assert verdict(foreign) == ("Inconclusive", "log_unfinished")
    assert foreign.environments[0].logs[0].state == "unfinished"
    assert verdict(sample(logs=[])) == ("Inconclusive", "log_unfinished")


def test_a_line_that_is_no_result_makes_its_log_unfinished() -> None:
    evidence = sample(facts_but(outcome_of(SECOND, seconds="long")))
    assert verdict(evidence, "LOCK-2") == ("Inconclusive", "log_unfinished")
    assert evidence.environments[0].logs[0].state == "unfinished"


@pytest.mark.parametrize(
    "control",
    [
        control_of(CLAIM, refutes="LOCK-2"),
        control_of(CLAIM, caught_by="test_levels_in_order"),
        control_of(CLAIM, kind="variant"),
        control_of(CLAIM, because="40P01"),
    ],
)
def test_a_control_that_does_not_fit_the_claim_does_not_count(control: Any) -> None:
    others = [control_of(claim) for claim in CHECKS if claim != CLAIM]
    assert row(sample(controls=[control, *others]), CLAIM).result == "Inconclusive"


def test_a_claim_without_its_control_is_inconclusive() -> None:
    assert verdict(sample(controls=[control_of("LOCK-2")])) == ("Inconclusive", "no_control")


def test_every_control_of_the_plan_has_to_be_caught() -> None:
    second = control_of(CLAIM, id="another", caught_by=SECOND)
    items = [*plan_of().items, plan_of().items[0].model_copy(update={"system": "another", "check": SECOND})]
    plan = plan_of().model_copy(update={"items": tuple(items)})
    given_controls = {one.id: one for one in [*(control_of(claim) for claim in CHECKS), second]}
    missed = [*good_facts(), finished(SECOND, CLAIM, system="another")]
    evidence = sample(plan=plan, logs=[log_of(plan, missed)], controls=given_controls.values())
    assert verdict(evidence) == ("Inconclusive", "control_not_caught")
    assert [one.outcome for one in row(evidence, CLAIM).by_environment[0].controls] == ["caught", "missed"]


def test_an_owner_that_is_not_in_the_source_is_inconclusive() -> None:
    found = inspections(lock_of())
    assert verdict(sample(inspections={**found, CLAIM: Inspection()})) == ("Inconclusive", "owner_not_found")
    assert verdict(sample(promises=Promises({}, {}))) == ("Inconclusive", "owner_not_found")


def test_what_the_system_does_not_promise_is_not_run_and_counted() -> None:
    evidence = sample(promises=Promises({"execution_tree_cancel": "no trees"}, {"attempts": "a:b"}))
    assert row(evidence, CLAIM).reason == "not promised: execution_tree_cancel: no trees"
    assert evidence.summary is not None
    assert evidence.summary.core_applying < evidence.summary.core == 38


def test_planned_unselected_and_impossible_claims_say_so() -> None:
    some = sample(selection=Selection(claims=("LOCK-2",), tiers=("pg",)))
    assert row(some, CLAIM).reason == "not selected"
    assert verdict(some, "LOCK-2") == ("Passed", "passed")
    assert row(some, "LOCK-3").reason == "planned"
    assert row(sample(tiers={"pg": "no PostgreSQL"}), CLAIM).reason == "needs tier pg: no PostgreSQL"
    assert row(sample(selection=Selection(tiers=("static",))), CLAIM).code == "not_selected"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (DIRTY, DIRTY, "uncommitted changes"),
        (CLEAN, DIRTY, "uncommitted changes"),
        (CLEAN, None, "the subject changed during the run"),
        (CLEAN, CLEAN.model_copy(update={"tree": "f" * 40}), "the subject changed during the run"),
        (
            Subject(kind="unidentified", name="sample", version="1", reason="no git"),
            Subject(kind="unidentified", name="sample", version="1", reason="no git"),
            "subject not identified: no git",
        ),
    ],
)
def test_only_an_identified_clean_subject_is_evidence(before: Subject, after: Subject | None, reason: str) -> None:
    evidence = sample(facts_but(outcome_of(FIRST, outcome="refuted", because="x")), before=before, after=after)
    assert {(one.result, one.reason) for one in evidence.claims} == {("Not run", reason)}
    assert row(evidence, CLAIM).provisional.result == "Failed"
    assert row(evidence, "LOCK-2").provisional.result == "Passed"
    assert {one.result for one in evidence.records} == {"Not run"}
    assert problems(evidence) == []


def environment_with(evidence: Evidence, **changes: Any) -> Evidence:
    changed: Environment = evidence.environments[0].model_copy(update=changes)
    return recompute(evidence.model_copy(update={"environments": (changed, *evidence.environments[1:])}))


def test_evidence_of_another_subject_or_revision_is_stale() -> None:
    other = environment_with(GOOD, subject=CLEAN.model_copy(update={"commit": "f" * 40}))
    assert {one.code for one in other.claims} == {"other_subject"}
    older = environment_with(GOOD, revisions={**GOOD.environments[0].revisions, CLAIM: 7})
    assert verdict(older) == ("Stale", "other_revision")
    assert verdict(older, "LOCK-2") == ("Passed", "passed")


def test_a_record_passes_only_when_all_its_claims_do() -> None:
    records = {one.id: one for one in GOOD.records}
    assert records["A2"].result == "Passed"
    assert records["T1"].result == "Not run"
    assert "3 of 18 claims Passed" in records["T1"].reason
    failed = sample(facts_but(outcome_of(FIRST, outcome="refuted", because="x")))
    assert next(one for one in failed.records if one.id == "T1").result == "Failed"


def test_the_order_of_results() -> None:
    assert worst(["Passed", "Not run", "Stale", "Inconclusive", "Failed"]) == "Failed"
    assert worst(["Passed", "Not run", "Stale", "Inconclusive"]) == "Inconclusive"
    assert worst(["Passed", "Not run", "Stale"]) == "Stale"
    assert worst(["Passed", "Not run"]) == "Not run"
    assert worst([]) == "Not run"


def test_stated_results_that_do_not_follow_are_found() -> None:
    rows = tuple(
        one.model_copy(update={"result": "Passed", "reason": "trust me"}) if one.id == "LOCK-3" else one
        for one in GOOD.claims
    )
    lied = GOOD.model_copy(update={"claims": rows}).sealed()
    assert problems(lied) == ["LOCK-3: states Passed (trust me), but it follows Not run (planned)"]
    summary = GOOD.summary.model_copy(update={"core_applying": 3}) if GOOD.summary else None
    assert problems(GOOD.model_copy(update={"summary": summary}).sealed()) == ["the summary differs from the rows"]
    record = GOOD.records[0].model_copy(update={"result": "Passed"})
    assert "record T1: states Passed" in problems(GOOD.model_copy(update={"records": (record, *GOOD.records[1:])}))[1]


def test_a_changed_file_has_another_digest() -> None:
    assert problems(GOOD.model_copy(update={"footnotes": ()})) == [
        "the file's digest is not that of its content: it was changed after it was written"
    ]


PASSED = {one.id for one in GOOD.claims if one.result == "Passed"}


@given(st.data())
def test_evidence_that_lost_a_fact_passes_nothing_that_rested_on_it(data: st.DataObject) -> None:
    facts = GOOD.environments[0].facts
    lost = data.draw(st.integers(0, len(facts) - 1))
    evidence = environment_with(GOOD, facts=facts[:lost] + facts[lost + 1 :])
    assert all(row(evidence, claim).result != "Passed" for claim in facts[lost].claims)


@given(st.data())
def test_evidence_that_gained_a_second_fact_passes_nothing_that_rests_on_it(data: st.DataObject) -> None:
    facts = good_facts()
    again = data.draw(st.sampled_from(facts))
    at = data.draw(st.integers(0, len(facts)))
    evidence = sample([*facts[:at], again, *facts[at:]])
    assert all(row(evidence, claim).result != "Passed" for claim in again["claims"])


MUTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "outcome": st.sampled_from(["refuted", "inconclusive", "skipped", "passed", "unknown"]),
        "because": st.sampled_from([None, "40P01", "leaked_session"]),
        "check": st.sampled_from([FIRST, SECOND, "test_elsewhere"]),
        "system": st.sampled_from(["subject", CONTROL.id, "nobody"]),
        "claims": st.sampled_from([[], [CLAIM], ["LOCK-2"], None]),
        "tier": st.sampled_from(["static", "pg", "kind"]),
    },
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 8), MUTATIONS), min_size=1, max_size=3), st.booleans())
def test_a_row_passes_only_with_all_that_it_needs(mutations: list[tuple[int, dict[str, Any]]], closed: bool) -> None:
    facts = good_facts()
    for at, change in mutations:
        facts[at] = {**facts[at], **change}
    evidence = sample(logs=[log_of(plan_of(), facts, closed=closed)])
    assert problems(evidence) == []
    for found in evidence.claims:
        if found.result == "Passed":
            assert found.id in PASSED
            assert closed
            assert needs(found.id, facts)


def needs(claim: str, facts: list[dict[str, Any]]) -> bool:
    """Said again, in other words: what a row must rest on."""
    own = [one for one in facts if one["system"] == "subject" and claim in (one["claims"] or [])]
    control = control_of(claim)
    on_control = [one for one in facts if (one["system"], one["check"]) == (control.id, control.caught_by)]
    return (
        sorted(one["check"] for one in own) == sorted(CHECKS[claim])
        and {one["outcome"] for one in own} == {"passed"}
        and [(one["outcome"], one["because"]) for one in on_control] == [("refuted", "55P03")]
        and all(one.get("tier", "kind") != "static" for one in own)
    )


def test_the_verdict_of_a_merged_revision_is_that_of_the_newest() -> None:
    raised = {**CATALOGUE.claims, CLAIM: CATALOGUE.claims[CLAIM].model_copy(update={"revision": 2})}
    lock = replace(lock_of(), claims={**lock_of().claims, CLAIM: replace(lock_of().claims[CLAIM], revision=2)})
    evidence = sample(catalogue=replace(CATALOGUE, claims=raised), lock=lock)
    assert verdict(evidence) == ("Passed", "passed")


def test_a_log_that_counts_more_results_than_the_file_holds_decides_nothing() -> None:
    twice = sample([*good_facts(), finished(FIRST, CLAIM)])
    assert verdict(environment_with(twice, facts=twice.environments[0].facts[:-1])) == (
        "Inconclusive",
        "log_unfinished",
    )


def test_a_control_caught_in_an_unfinished_log_is_not_caught() -> None:
    subject = [one for one in good_facts() if one["system"] == "subject"]
    controls = [one for one in good_facts() if one["system"] != "subject"]
    plan = plan_of()
    logs = [log_of(plan, []), log_of(plan, subject, "gw0"), log_of(plan, controls, "gw1", closed=False)]
    assert verdict(sample(logs=logs)) == ("Inconclusive", "control_not_caught")


def test_a_control_caught_by_a_check_that_the_claim_does_not_expect_is_not_caught() -> None:
    elsewhere = control_of(CLAIM, caught_by="test_elsewhere")
    caught = finished("test_elsewhere", CLAIM, system=elsewhere.id, outcome="refuted", because="55P03")
    evidence = sample([*good_facts(), caught], controls=[elsewhere])
    assert verdict(evidence) == ("Inconclusive", "control_not_caught")
