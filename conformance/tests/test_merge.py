"""Files of several jobs make one matrix: one subject, environments side by side, disagreement shown."""

import pytest
from samples import CLEAN, good_facts, row, sample

from leaseproof.evidence.merge import CannotMerge, merge
from leaseproof.evidence.model import Evidence, Selection
from leaseproof.evidence.verdicts import problems

CLAIM = "LOCK-1"
TIERS = ("static", "pg", "pg+redis", "e2e")


def failing() -> list[dict[str, object]]:
    first, *rest = good_facts()
    return [{**first, "outcome": "refuted", "because": "did_not_wait"}, *rest]


def merged(*files: Evidence) -> Evidence:
    evidence = merge([(f"job-{number}.json", one) for number, one in enumerate(files, 1)])
    assert problems(evidence) == []
    return evidence


def test_environments_stand_side_by_side() -> None:
    evidence = merged(sample(), sample(run="r0000002", environment="pg15"))
    found = row(evidence, CLAIM)
    assert [(one.environment, one.result) for one in found.by_environment] == [("pg18", "Passed"), ("pg15", "Passed")]
    assert found.result == "Passed"


def test_the_worst_environment_counts_and_is_named() -> None:
    evidence = merged(sample(), sample(failing(), run="r0000002", environment="pg15"))
    found = row(evidence, CLAIM)
    assert found.result == "Failed"
    assert found.reason.startswith("pg15: test_root_before_descendants: did_not_wait")


def test_disagreement_in_one_environment_is_failed_with_both_shown() -> None:
    found = row(merged(sample(), sample(failing(), run="r0000002")), CLAIM)
    assert found.result == "Failed"
    assert "disagree" in found.reason
    assert "run r0000001 Passed" in found.reason
    assert "run r0000002 Failed" in found.reason


def test_jobs_of_one_environment_complete_each_other() -> None:
    facts = good_facts()
    lock_job = sample(
        [one for one in facts if one["claims"] == [CLAIM]], selection=Selection(claims=(CLAIM,), tiers=TIERS)
    )
    rest = sample(
        [one for one in facts if one["claims"] != [CLAIM]],
        run="r0000002",
        selection=Selection(claims=("LOCK-2",), tiers=TIERS),
    )
    evidence = merged(lock_job, rest)
    assert row(evidence, CLAIM).result == "Passed"
    assert row(evidence, "LOCK-2").result == "Passed"
    assert row(evidence, "CANCEL-1").code == "not_selected"


def test_an_absent_check_is_not_completed_by_another_job() -> None:
    without = [one for one in good_facts() if one["claims"] != [CLAIM]]
    assert row(merged(sample(), sample(without, run="r0000002")), CLAIM).code == "absent"


def test_another_commit_is_stale() -> None:
    other = CLEAN.model_copy(update={"commit": "f" * 40})
    evidence = merged(sample(), sample(run="r0000002", environment="pg15", before=other, after=other))
    assert evidence.subject == CLEAN
    assert row(evidence, CLAIM).result == "Stale"
    assert [one.result for one in row(evidence, CLAIM).by_environment] == ["Passed", "Stale"]


def test_an_older_revision_is_stale() -> None:
    newer = sample(run="r0000002", environment="pg15")
    claims = tuple(one.model_copy(update={"revision": 2}) if one.id == CLAIM else one for one in newer.claims)
    environment = newer.environments[0]
    environment = environment.model_copy(
        update={"revisions": {**environment.revisions, CLAIM: 2}, "catalogue_sha256": "b" * 64}
    )
    newer = newer.model_copy(update={"claims": claims, "environments": (environment,), "catalogue_sha256": "b" * 64})
    for evidence in (merged(sample(), newer), merged(newer, sample())):
        found = row(evidence, CLAIM)
        assert (found.revision, found.result, found.code) == (2, "Stale", "other_revision")


def test_another_system_is_refused() -> None:
    other = CLEAN.model_copy(update={"name": "other"})
    with pytest.raises(CannotMerge, match=r"job-2\.json is about other, job-1\.json about sample"):
        merged(sample(), sample(before=other, after=other))


def test_other_promises_at_one_commit_are_refused() -> None:
    other = sample(run="r0000002").model_copy(update={"not_promised": {"signals": "none"}})
    with pytest.raises(CannotMerge, match="differ in what sample promises"):
        merged(sample(), other)


def test_other_claims_under_one_catalogue_are_refused() -> None:
    good = sample()
    claims = tuple(one.model_copy(update={"expected": one.expected[:1]}) for one in good.claims)
    with pytest.raises(CannotMerge, match="state other claims"):
        merged(good, good.model_copy(update={"claims": claims}))


def test_other_records_under_one_catalogue_are_refused() -> None:
    good = sample()
    records = tuple(one.model_copy(update={"claims": one.claims[:1]}) for one in good.records)
    with pytest.raises(CannotMerge, match="state other records"):
        merged(good, good.model_copy(update={"records": records}))


def test_one_run_twice_counts_once_and_never_with_other_facts() -> None:
    assert len(merged(sample(), sample()).environments) == 1
    with pytest.raises(CannotMerge, match="run r0000001 stands in two files with other facts"):
        merged(sample(), sample(failing()))


def test_nothing_is_no_matrix() -> None:
    with pytest.raises(CannotMerge, match="name at least one"):
        merge([])
