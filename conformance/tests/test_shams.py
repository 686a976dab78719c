"""A suite is worth what it refuses: systems that keep no promise pass no claim."""

import os
from collections import defaultdict
from pathlib import Path

import pytest

from leaseproof.claims.catalogue import load_catalogue
from leaseproof.evidence.facts import read_logs
from leaseproof.evidence.inspect import SUITES, find_checks
from leaseproof.evidence.plan import SUBJECT, Item, Plan
from leaseproof.evidence.runner import Job, run
from leaseproof.loading import load_system
from leaseproof.servers.address import new_run

CHECKS = {check.name: check.claims for check in find_checks(SUITES, None) if not check.slow}
"""All but the slow ones: where these alone refute a claim, the whole does."""


@pytest.mark.parametrize("sham", ["nothing", "raising", "cheat"])
def test_a_sham_passes_no_claim_and_each_core_claim_refutes_it(
    sham: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    outcomes = tried(f"shams:{sham}", tmp_path)
    catalogue = load_catalogue().claims
    by_claim = defaultdict(dict)
    for check, claims in CHECKS.items():
        for claim in claims:
            by_claim[claim][check] = outcomes[check]

    passed = {claim for claim, checks in by_claim.items() if set(checks.values()) == {"passed"}}
    assert not passed
    unrefuted = {
        claim: checks
        for claim, checks in by_claim.items()
        if catalogue[claim].kind == "core" and "refuted" not in checks.values()
    }
    assert not unrefuted


def test_the_shams_know_the_port_alone() -> None:
    assert "agentrun" not in (Path(__file__).parent / "shams.py").read_text()


@pytest.mark.parametrize("sham", ["nothing", "raising", "cheat"])
def test_a_sham_promises_everything(sham: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert not load_system(f"shams:{sham}").system.not_promised


def tried(system: str, folder: Path) -> dict[str, str]:
    """What became of each check of the suites on the system."""
    items = tuple(Item(system=SUBJECT, check=check) for check in CHECKS)
    plan = Plan(run=new_run(), system=system, subject="sham", mode="verify", items=items)
    run(Job(plan, folder, workers=len(os.sched_getaffinity(0))))
    logs = read_logs(folder)
    assert all(log.complete for log in logs), [fact for log in logs for fact in log.of("trouble")]
    return {str(fact["check"]): str(fact["outcome"]) for log in logs for fact in log.of("finished")}
