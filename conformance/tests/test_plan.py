"""The plan: which items a run gets, and its file."""

from pathlib import Path

import pytest

from leaseproof.controls.registry import Control
from leaseproof.evidence.plan import BadPlan, Item, Plan, items_for_controls, items_for_verify


class Schema:
    def __init__(self, schema: str) -> None:
        self.schema = schema


def control(name: str, caught_by: str | None = "test_a", schema: str = "s") -> Control:
    kind = "defect" if caught_by else "variant"
    return Control(name, kind, "toy", "", lambda: Schema(schema), "A-1", caught_by, "word")  # type: ignore[arg-type,return-value]


def pairs(items: tuple[Item, ...]) -> list[tuple[str, str]]:
    return [(item.system, item.check) for item in items]


def test_verify_tries_each_expected_check_once_and_one_control_a_claim() -> None:
    controls = {"c1": control("c1"), "c2": control("c2", "test_b"), "idle": control("idle")}
    items = items_for_verify(
        {"A-1": ["test_a", "test_shared"], "A-2": ["test_b", "test_shared"]}, {"A-1": "c1", "A-2": "c2"}, controls
    )
    assert pairs(items) == [
        ("subject", "test_a"),
        ("subject", "test_shared"),
        ("subject", "test_b"),
        ("c1", "test_a"),
        ("c2", "test_b"),
    ]


def test_verify_leaves_out_a_named_control_that_is_not_installed() -> None:
    assert pairs(items_for_verify({"A-1": ["test_a"]}, {"A-1": "gone"}, {})) == [("subject", "test_a")]


def test_controls_try_slow_checks_only_where_they_are_named() -> None:
    controls = {"d": control("d", "test_slow"), "v": control("v", None)}
    checks = ["test_a", "test_slow", "test_slower"]
    items = items_for_controls(
        controls, {"d": {"A-1": checks}, "v": {"A-1": checks}}, frozenset({"test_slow", "test_slower"})
    )
    assert set(pairs(items)) == {("d", "test_a"), ("d", "test_slow"), ("v", "test_a")}


def test_a_defect_meets_one_check_of_each_other_claim_and_a_variant_all() -> None:
    controls = {name: control(name) for name in "defghijk"} | {"v": control("v", None)}
    claims = {"A-1": ["test_a", "test_b"], "A-2": ["test_c", "test_d"]}
    items = pairs(items_for_controls(controls, dict.fromkeys(controls, claims), frozenset()))
    others = [check for system, check in items if system != "v" and check in claims["A-2"]]
    assert [check for system, check in items if system == "v"] == ["test_a", "test_b", "test_c", "test_d"]
    assert {(name, check) for name in "defghijk" for check in claims["A-1"]} <= set(items)
    assert (len(others), set(others)) == (8, {"test_c", "test_d"})
    assert len(items_for_controls(controls, dict.fromkeys(controls, claims), frozenset(), full=True)) == 36


def test_systems_of_one_schema_stand_side_by_side() -> None:
    controls = {"a": control("a", schema="z"), "b": control("b", schema="y"), "c": control("c", schema="z")}
    items = items_for_controls(controls, {key: {"A-1": ["test_a"]} for key in controls}, frozenset())
    assert [item.system for item in items] == ["b", "a", "c"]


def test_a_control_that_cannot_be_made_still_gets_its_item() -> None:
    def broken() -> Schema:
        raise RuntimeError("no")

    bad = Control("bad", "defect", "toy", "", broken, "A-1", "test_a", "word")  # type: ignore[arg-type]
    assert pairs(items_for_verify({"A-1": ["test_a"]}, {"A-1": "bad"}, {"bad": bad}))[-1] == ("bad", "test_a")


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan(
        run="r0000000", system="m:s", subject="toy", mode="verify", items=(Item(system="subject", check="test_a"),)
    )
    plan.write(tmp_path / "plan.json")
    again = Plan.read(tmp_path / "plan.json")
    assert again == plan
    assert again.sha256 == plan.sha256


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"run": "r", "items": 3}', "\x00"])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(BadPlan, match="is no plan"):
        Plan.read(tmp_path / "plan.json")


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=r"can't read the plan .*plan.json: No such file"):
        Plan.read(tmp_path / "plan.json")
