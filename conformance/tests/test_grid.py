"""The grid of controls: what counts as caught, and what else a control broke."""

from typing import Any

import pytest

from leaseproof.controls.grid import Grid, grid
from leaseproof.controls.registry import Control
from leaseproof.evidence.facts import Log
from leaseproof.evidence.plan import Item, Plan

DEFECT = Control("d", "defect", "toy", "", lambda: None, "A-1", "test_a", "55P03", frozenset({"A-2"}))  # type: ignore[arg-type,return-value]
VARIANT = Control("v", "variant", "toy", "", lambda: None)  # type: ignore[arg-type,return-value]
CLAIMS = {"test_a": ["A-1"], "test_b": ["A-2", "B-1"], "test_c": ["A-2"]}


def found(control: Control, *seen: tuple[str, str, str | None], whole: bool = True, plan: str | None = None) -> Grid:
    """The grid of one control on which these checks ended so: (check, outcome, because)."""
    planned = Plan(
        run="r0000000",
        system="m:s",
        subject="toy",
        mode="controls",
        items=tuple(Item(system=control.id, check=check) for check in CLAIMS),
    )
    facts: list[dict[str, Any]] = [{"kind": "opened", "plan_sha256": plan or planned.sha256}]
    for check, outcome, because in seen:
        facts.append({"kind": "started", "system": control.id, "check": check})
        if outcome != "unfinished":
            facts.append(
                {
                    "kind": "finished",
                    "system": control.id,
                    "check": check,
                    "claims": CLAIMS[check],
                    "outcome": outcome,
                    "because": because,
                    "detail": "",
                }
            )
    return grid([control], planned, [Log("main", tuple(facts), complete=whole, torn=False, sha256="")])


CAUGHT = ("test_a", "refuted", "55P03")
PASSED = ("test_a", "passed", None)
ELSEWHERE = ("test_c", "refuted", "x")


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ([CAUGHT], "caught"),
        ([CAUGHT, ELSEWHERE], "caught"),
        ([("test_a", "refuted", "other")], "caught_otherwise"),
        ([PASSED, ELSEWHERE], "caught_otherwise"),
        ([PASSED], "missed"),
        ([PASSED, ("test_c", "inconclusive", None)], "missed"),
        ([("test_a", "inconclusive", None), ELSEWHERE], "errored"),
        ([("test_a", "skipped", None)], "errored"),
        ([("test_a", "unfinished", None)], "errored"),
        ([CAUGHT, CAUGHT], "errored"),
        ([], "absent"),
        ([ELSEWHERE], "absent"),
    ],
)
def test_a_defect_is_caught_by_the_named_check_for_the_stated_reason(seen: list[Any], outcome: str) -> None:
    (one,) = found(DEFECT, *seen).defects
    assert one.outcome == outcome
    assert one.sound == (outcome == "caught")


@pytest.mark.parametrize("broken", [{"whole": False}, {"plan": "0" * 64}])
def test_a_log_that_is_not_whole_or_of_another_plan_catches_nothing(broken: dict[str, Any]) -> None:
    (one,) = found(DEFECT, CAUGHT, **broken).defects
    assert one.outcome == "errored"


def test_a_run_without_its_main_log_catches_nothing() -> None:
    planned = Plan(run="r", system="m:s", subject="t", mode="controls", items=(Item(system="d", check="test_a"),))
    facts = (
        {"kind": "opened", "plan_sha256": planned.sha256},
        {"kind": "started", "system": "d", "check": "test_a"},
        {
            "kind": "finished",
            "system": "d",
            "check": "test_a",
            "claims": ["A-1"],
            "outcome": "refuted",
            "because": "55P03",
            "detail": "",
        },
    )
    worker = Log("gw0", facts, complete=True, torn=False, sha256="")
    assert grid([DEFECT], planned, [worker]).defects[0].outcome == "errored"
    main = Log("main", facts[:1], complete=True, torn=False, sha256="")
    assert grid([DEFECT], planned, [main, worker]).defects[0].outcome == "caught"


def test_a_claim_that_fails_undeclared_is_named_and_makes_the_grid_wrong() -> None:
    result = found(DEFECT, CAUGHT, ("test_b", "refuted", "x"))
    (one,) = result.defects
    assert (one.outcome, one.undeclared, one.sound, result.refuted) == ("caught", ("B-1",), False, True)


@pytest.mark.parametrize(
    ("ended", "held"), [("passed", ("A-2",)), ("refuted", ()), ("inconclusive", ()), ("unfinished", ())]
)
def test_a_declared_claim_that_passed_all_its_checks_is_named(ended: str, held: tuple[str, ...]) -> None:
    result = found(DEFECT, CAUGHT, ("test_b", "passed", None), ("test_c", ended, None))
    (one,) = result.defects
    assert (one.held, one.outcome, one.sound, result.refuted) == (held, "caught", True, False)
    assert result.to_json()["defects"][0]["held"] == held
    (untried,) = found(DEFECT, CAUGHT).defects
    assert untried.held == ()


def test_a_cell_shows_the_worst_that_a_claims_checks_found() -> None:
    (one,) = found(DEFECT, CAUGHT, ("test_b", "passed", None), ("test_c", "inconclusive", None)).defects
    assert one.cells == {"A-1": "refuted", "A-2": "undecided", "B-1": "passed"}


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ([PASSED, ("test_b", "passed", None)], "passed"),
        ([PASSED, ELSEWHERE], "failed"),
        ([ELSEWHERE, ("test_a", "inconclusive", None)], "failed"),
        ([PASSED, ("test_b", "skipped", None)], "errored"),
        ([("test_a", "unfinished", None)], "errored"),
        ([], "absent"),
    ],
)
def test_a_variant_passes_when_every_check_of_it_passed(seen: list[Any], outcome: str) -> None:
    result = found(VARIANT, *seen)
    (one,) = result.variants
    assert one.outcome == outcome
    assert (result.refuted, result.undecided) == (outcome == "failed", outcome in ("errored", "absent"))


def test_json_names_id_and_outcome() -> None:
    assert [(one["id"], one["outcome"]) for one in found(DEFECT, CAUGHT).to_json()["defects"]] == [("d", "caught")]
