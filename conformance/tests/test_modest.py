"""A system is held to what it promises: a correct one that promises little is not refuted for what it does not."""

import os
from pathlib import Path

import pytest

from leaseproof.claims.catalogue import load_catalogue
from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.inspect import SUITES, find_checks
from leaseproof.evidence.plan import SUBJECT, Item, Plan
from leaseproof.evidence.runner import Job, run
from leaseproof.loading import load_system
from leaseproof.servers.address import new_run

CHECKS = {
    check.name: set(check.claims)
    for check in find_checks(SUITES, None)
    if any(claim.startswith("ATTEMPT-") for claim in check.claims)
}


def test_a_correct_system_that_promises_little_passes_what_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    promised = {str(cap) for cap in load_system("modest:system").system.capabilities}
    apply = {claim.id for claim in load_catalogue().claims.values() if promised.issuperset(claim.requires)}
    assert {f"ATTEMPT-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 11)} <= apply

    ended = tried("modest:system", [check for check, claims in CHECKS.items() if claims <= apply], tmp_path)

    wrong = [f"{check} {outcome}, {why}" for check, (outcome, why) in ended.items() if outcome != "passed"]
    assert not wrong, "\n".join(wrong)
    assert len(ended) > 20


def tried(system: str, checks: list[str], folder: Path) -> dict[str, tuple[str, str]]:
    """The outcome of each check, with what it said."""
    items = tuple(Item(system=SUBJECT, check=check) for check in checks)
    plan = Plan(run=new_run(), system=system, subject="modest", mode="verify", items=items)
    run(Job(plan, folder, workers=len(os.sched_getaffinity(0))))
    logs = read_logs(folder)
    assert all(log.complete for log in logs), [fact for log in logs for fact in log.of("trouble")]
    finished = [fact for log in logs for fact in log.of("finished")]
    return {str(fact["check"]): (str(fact["outcome"]), f"{fact['because']}: {fact['detail']}") for fact in finished}
