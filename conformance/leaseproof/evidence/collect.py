"""Which checks there are, and which are refused. Owns the reading of collected functions; must not run them."""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

from leaseproof.checks import CLAIMS, SLOW
from leaseproof.evidence.plan import Plan

SYSTEM_FIXTURE = "system_under_test"


def is_check(function: object) -> bool:
    """Whether the function is marked by `@claim`."""
    return hasattr(function, CLAIMS)


def claims_of(item: pytest.Item) -> list[str]:
    """The claims that a check decides."""
    return list(getattr(_function(item), CLAIMS, ()))


def check_name(item: pytest.Item) -> str:
    """The name of a check, which is its identity."""
    return str(getattr(item, "originalname", item.name))


def system_id(item: pytest.Item) -> str:
    """The system that an item is tried on, as the plan calls it."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params[SYSTEM_FIXTURE]) if callspec else ""


def refusals(items: Iterable[pytest.Item], *, only_checks: bool) -> list[str]:
    """What is wrong with the checks, a sentence each. `only_checks`: a test that is no check is wrong too."""
    wrong: dict[str, None] = {}
    places: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if claims_of(item):
            places[check_name(item)].add(item.nodeid.partition("[")[0])
            wrong.update(dict.fromkeys(_faults(item)))
        elif only_checks or is_check(_function(item)):
            wrong[f"{item.nodeid.partition('[')[0]} names no claim; mark it with @claim(...)"] = None
    for name, where in places.items():
        if len(where) > 1:
            wrong[f"two checks are named {name} ({', '.join(sorted(where))}); rename one"] = None
    return list(wrong)


def _faults(item: pytest.Item) -> list[str]:
    name, function = item.nodeid.partition("[")[0], _function(item)
    faults = []
    if not inspect.iscoroutinefunction(function):
        faults.append(f"{name} is not async; a check is an `async def`")
    if getattr(item, "cls", None) is not None:
        faults.append(f"{name} is a method; a check is a plain function")
    callspec = getattr(item, "callspec", None)
    if callspec is None or SYSTEM_FIXTURE not in callspec.params:
        faults.append(f"{name} uses no system; ask for the fixture `world` or `{SYSTEM_FIXTURE}`")
    elif set(callspec.params) != {SYSTEM_FIXTURE}:
        faults.append(f"{name} is parametrised; write its cases as a loop, or as checks of their own")
    return faults


def in_plan(items: Sequence[pytest.Item], plan: Plan) -> list[pytest.Item]:
    """The items that the plan lists, in its order; unless that was drawn, slow ones first, so that none ends alone."""
    wanted = {(item.system, item.check): place for place, item in enumerate(plan.items)}
    chosen = [item for item in items if (system_id(item), check_name(item)) in wanted]
    return sorted(
        chosen,
        key=lambda item: (
            not plan.shuffle and not getattr(_function(item), SLOW, False),
            wanted[system_id(item), check_name(item)],
        ),
    )


def _function(item: pytest.Item) -> object:
    return item.function if isinstance(item, pytest.Function) else None
