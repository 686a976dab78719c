"""Owners, checks and controls are found in the source, with digests, without importing anything."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from samples import CATALOGUE, lock_of

from leaseproof.evidence import inspect
from leaseproof.evidence.inspect import checks_by_claim, find_checks, find_controls, find_symbol, inspect_claims

MODULE = """raise SystemExit("imported")

LIMIT: int = 3
from os import getcwd

@decorated
class Repository:
    async def cancel(self):
        return 1

    class Inner:
        pass
"""
SUITE = """from leaseproof import checks
from leaseproof.checks import claim

@claim("LOCK-1", "LOCK-2", slow=True)
async def test_root_before_descendants(world): ...

@checks.claim("LOCK-1")
async def test_terminal_root_is_locked(world): ...

@other("LOCK-1")
async def test_no_check(world): ...

async def helper(world): ...
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the import path that must not be imported, and suites."""
    package = tmp_path / "acme_inspected"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text('raise SystemExit("imported")\n')
    (package / "deep/__init__.py").write_text("")
    (package / "deep/runs.py").write_text(MODULE)
    (package / "controls.py").write_text('x = 1\nCONTROLS = [Control(id="breaks_lock_1")]\n')
    (package / "broken.py").write_text("def (")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/test_lock.py").write_text(SUITE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_symbol_is_found_with_the_digest_of_its_own_text(source: Path) -> None:
    found = find_symbol("acme_inspected.deep.runs:Repository", source)
    assert found is not None
    text = MODULE[MODULE.index("@decorated") :].rstrip("\n")
    assert (found.file, found.line) == ("acme_inspected/deep/runs.py", 7)
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert not any(name.startswith("acme_inspected") for name in sys.modules)


@pytest.mark.parametrize("symbol", ["Repository.cancel", "Repository.Inner", "LIMIT"])
def test_nested_and_assigned_symbols_are_found(source: Path, symbol: str) -> None:
    assert find_symbol(f"acme_inspected.deep.runs:{symbol}", source) is not None


@pytest.mark.parametrize(
    "symbol",
    [
        "acme_inspected.deep.runs:Missing",
        "acme_inspected.deep.runs:Repository.missing",
        "acme_inspected.deep.runs:LIMIT.bit_length",
        "acme_inspected.deep.runs:getcwd",
        "acme_inspected.deep.runs",
        "acme_inspected.deep.runs:",
        "acme_inspected.missing:Repository",
        "acme_inspected.broken:Repository",
        "no_such_module:Repository",
        "sys:path",
    ],
)
def test_what_is_not_defined_there_is_not_found(source: Path, symbol: str) -> None:
    assert find_symbol(symbol, source) is None


def test_checks_are_found_by_their_decorator(source: Path) -> None:
    assert {check.name: check.claims for check in find_checks(source / "suites", source)} == {
        "test_root_before_descendants": ("LOCK-1", "LOCK-2"),
        "test_terminal_root_is_locked": ("LOCK-1",),
    }
    assert checks_by_claim(source / "suites") == {
        "LOCK-1": ["test_root_before_descendants", "test_terminal_root_is_locked"],
        "LOCK-2": ["test_root_before_descendants"],
    }


class Point:
    """An entry point's module, as importlib.metadata tells it."""

    module = "acme_inspected.controls"


@pytest.fixture
def registered(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's controls are registered."""
    monkeypatch.setattr(inspect, "entry_points", lambda group: [Point()])
    return source


def test_a_control_is_found_where_it_is_registered(registered: Path) -> None:
    found = find_controls(["breaks_lock_1", "breaks_nothing"], registered)
    assert list(found) == ["breaks_lock_1"]
    assert (found["breaks_lock_1"].symbol, found["breaks_lock_1"].line) == ("controls:CONTROLS", 2)


def test_a_claim_is_inspected_when_everything_is_there(registered: Path) -> None:
    owners = {"run repository": "acme_inspected.deep.runs:Repository"}
    found = inspect_claims(CATALOGUE, lock_of(), owners, registered, registered / "suites")
    assert found["LOCK-1"].missing == ()
    assert [one.symbol for one in found["LOCK-1"].checks] == [
        "test_lock:test_root_before_descendants",
        "test_lock:test_terminal_root_is_locked",
    ]
    assert found["LOCK-2"].missing == ("check test_levels_in_order", "control breaks_lock_2")
    assert "owner attempts" in found["ATTEMPT-13"].missing


def test_a_check_of_another_claim_does_not_stand_in(registered: Path) -> None:
    lock = lock_of()
    lock = replace(
        lock, claims={**lock.claims, "LOCK-3": replace(lock.claims["LOCK-2"], checks=("LOCK-3 test_no_check",))}
    )
    found = inspect_claims(CATALOGUE, lock, {}, registered, registered / "suites")
    assert "check test_no_check" in found["LOCK-3"].missing


def test_no_path_of_the_machine_is_shown(source: Path) -> None:
    found = find_symbol("acme_inspected.deep.runs:Repository", None)
    assert found is not None
    assert found.file == "acme_inspected/deep/runs.py"
