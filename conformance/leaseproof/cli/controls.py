"""`leaseproof controls`: every check on every negative control. Owns the steps, the printed grid and the exit code."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leaseproof.capabilities import Cap
from leaseproof.cli import FAILED, INCONCLUSIVE, options, prepare
from leaseproof.cli.execute import execute
from leaseproof.cli.terminal import console, fail, shown
from leaseproof.controls.grid import Cell, Defect, Grid, Variant, grid
from leaseproof.controls.registry import Control
from leaseproof.evidence.inspect import find_checks
from leaseproof.evidence.plan import Plan, items_for_controls
from leaseproof.evidence.redact import redact
from leaseproof.files import write_text
from leaseproof.servers.address import new_run
from leaseproof.tiers import DEFAULT, Given, probe

DEADLINE = 30.0
"""Seconds of a check on a control: a broken system may make many checks wait."""

Some = Annotated[list[str] | None, typer.Option("--control", metavar="ID", help="Try this control alone (repeatable).")]
Full = Annotated[bool, typer.Option("--full", help="Try every check on every defect, not one of each other claim.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the grid to this file too.")]
MARKS: Mapping[Cell, str] = {"refuted": "x", "passed": ".", "undecided": "?", "not tried": " "}
STYLES = {"caught": "green", "passed": "green", "errored": "yellow", "absent": "yellow"}


def controls(
    context: typer.Context,
    system: options.System = None,
    control: Some = None,
    workers: options.Workers = "auto",
    full: Full = False,
    seed: options.Seed = 0,
    json_file: Json = None,
    reports: options.Reports = Path("reports"),
    dsn: options.Dsn = None,
    redis_url: options.RedisUrl = None,
    pg_bin: options.PgBin = None,
) -> None:
    """Run the suites on every named defect, which must be caught, and on every correct variant, which must pass."""
    given = Given(dsn, redis_url, pg_bin)
    ready = prepare.ready(context, system, workers, reports)
    if not ready.controls:
        fail(f"no controls of {ready.loaded.system.name} are installed (entry points leaseproof.controls)")
    prepare.known("control", control or [], ready.controls, "`leaseproof controls`")
    variables = prepare.servers(given)
    if json_file is not None and not json_file.resolve().parent.is_dir():
        fail(f"--json {json_file}: there is no folder {json_file.resolve().parent}")

    picked = {name: one for name, one in ready.controls.items() if not control or name in control}
    slow = frozenset(check.name for check in find_checks(ready.kit.suites, None) if check.slow)
    plan = Plan(
        run=new_run(),
        system=ready.loaded.name,
        subject=ready.loaded.system.name,
        mode="controls",
        items=items_for_controls(
            picked, {name: _applying(one, ready, given) for name, one in picked.items()}, slow, full=full
        ),
        seed=seed,
        dsn=dsn and redact(dsn),
        redis_url=redis_url and redact(redis_url),
        deadline=DEADLINE,
    )
    logs = execute(plan, ready.folder, ready.kit, prepare.workers(workers, len(plan.items)), variables)
    found = grid(picked.values(), plan, logs)
    show(found, console())
    if json_file is not None:
        try:
            write_text(json_file, json.dumps(found.to_json(), indent=1) + "\n")
        except OSError as error:
            fail(f"can't write {json_file}: {error.strerror}", INCONCLUSIVE)
    raise typer.Exit(FAILED if found.refuted else INCONCLUSIVE if found.undecided else 0)


def _applying(control: Control, ready: prepare.Ready, given: Given) -> dict[str, tuple[str, ...]]:
    """The claims, with their checks, that are built, run here by default, and are promised by the control."""
    probes = probe(given)
    try:
        left_out: Mapping[Cap, str] = control.system().not_promised
    except Exception:  # noqa: BLE001 - shows when the control is tried
        left_out = ready.loaded.system.not_promised
    return {
        claim.id: ready.lock.claims[claim.id].tests
        for claim in ready.catalogue.claims.values()
        if claim.tier in DEFAULT and probes[claim.tier].can_run and set(claim.requires).isdisjoint(left_out)
    }


def show(found: Grid, screen: Console) -> None:
    """Print the grid: a row a control, a column a family of claims, a mark a claim."""
    columns = _columns(found)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("control", "outcome", "refutes", *map(shown, columns)):
        table.add_column(Text(title), no_wrap=True)
    for one in found.rows:
        table.add_row(
            Text(shown(one.id)),
            Text(one.outcome.replace("_", " "), style=STYLES.get(one.outcome, "bold red")),
            Text(shown(one.refutes) if isinstance(one, Defect) else "nothing"),
            *(
                Text("".join(MARKS[one.cells.get(claim, "not tried")] for claim in claims))
                for claims in columns.values()
            ),
        )
    screen.print(table)
    screen.print("x refuted  . passed  ? undecided; claims by number from left to right", style="dim")
    for one in found.rows:
        if not one.sound:
            screen.print(Text(shown(_complaint(one)), style="yellow"))
    for one in found.defects:
        if one.held:
            held = f"{one.id}: declared, but held: {', '.join(one.held)} passed all checks that were tried"
            screen.print(Text(shown(held), style="dim"))
    caught = sum(one.sound for one in found.defects)
    passed = sum(one.sound for one in found.variants)
    screen.print(
        f"{caught} of {len(found.defects)} defects caught as named · {passed} of {len(found.variants)} variants passed"
    )


def _columns(found: Grid) -> dict[str, list[str]]:
    """Family to the claims that were tried, by number."""
    families: dict[str, set[str]] = defaultdict(set)
    for one in found.rows:
        for claim in one.cells:
            families[claim.rpartition("-")[0]].add(claim)
    return {
        family: sorted(claims, key=lambda claim: int(claim.rpartition("-")[2])) for family, claims in families.items()
    }


def _complaint(one: Defect | Variant) -> str:
    parts = [] if one.outcome == "caught" else [one.reason]
    if isinstance(one, Defect) and one.undeclared:
        parts.append(f"also breaks {', '.join(one.undeclared)}, which it does not declare")
    return f"{one.id}: {one.outcome.replace('_', ' ')}: {'; '.join(parts)}"
