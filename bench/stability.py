"""Runs the suites many times in different ways, and compares the verdicts. Owns the list of ways; must not judge.

    python bench/stability.py [--runs 20] [--state FILE] [--fresh]

Each run is `leaseproof verify` with another number of workers, order of checks, server and load. Its outcome is one
line of the state file, so that a run that was cut short goes on where it stopped. Exit code 1 when two runs differ.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEASEPROOF = (sys.executable, "-m", "leaseproof")
DEBIAN_15 = "/usr/lib/postgresql/15/bin"


@dataclass(frozen=True)
class Way:
    """One way to run the suites: workers, shuffled order (0: the plan's own), busy cores beside it, server."""

    workers: int
    shuffle: int
    busy: int
    server: str


def ways() -> Iterator[Way]:
    """Every number of workers with every order, load and server, before one comes again."""
    kinds = [("plain", 0, 0), ("shuffled", 1, 0), ("loaded", 0, 2)]
    servers = ["18 (embedded)"] + (["15 (Debian)"] if Path(DEBIAN_15, "postgres").exists() else [])
    table = [
        Way(workers, shuffle, busy, server) for server in servers for _, shuffle, busy in kinds for workers in (0, 2, 4)
    ]
    for turn, way in enumerate(cycle(table)):
        yield Way(way.workers, way.shuffle and way.shuffle + turn, way.busy, way.server)


@contextmanager
def busy_cores(number: int) -> Iterator[None]:
    """Processes that do nothing but compute, for as long as the block lasts."""
    with ExitStack() as stack:
        for _ in range(number):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def verdicts(way: Way) -> dict[str, Any]:
    """Run once; exit code, seconds, and each claim's result (the provisional one of a changed tree)."""
    with tempfile.TemporaryDirectory() as reports, busy_cores(way.busy):
        command = [*LEASEPROOF, "verify", "--reports", reports, "-n", str(way.workers)]
        command += ["--shuffle", str(way.shuffle)] if way.shuffle else []
        command += ["--pg-bin", DEBIAN_15] if way.server.startswith("15") else []
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
        seconds = round(time.monotonic() - began, 1)
        evidence = Path(reports, "evidence.json")
        if not evidence.exists():
            return {
                "exit": done.returncode,
                "seconds": seconds,
                "results": {},
                "says": (done.stdout + done.stderr)[-800:],
            }
        claims = json.loads(evidence.read_text())["claims"]
    results = {claim["id"]: (claim.get("provisional") or claim)["result"] for claim in claims}
    reasons = {
        claim["id"]: (claim.get("provisional") or claim)["reason"]
        for claim in claims
        if results[claim["id"]] in {"Failed", "Inconclusive"}
    }
    return {"exit": done.returncode, "seconds": seconds, "results": results, "says": reasons}


def main() -> int:
    """Run what the state file still lacks; compare all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="how many runs in all (default 20)")
    parser.add_argument(
        "--state", type=Path, default=ROOT / "reports" / "stability.jsonl", help="where outcomes are kept"
    )
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    options = parser.parse_args()
    if options.fresh:
        options.state.unlink(missing_ok=True)
    options.state.parent.mkdir(parents=True, exist_ok=True)
    kept = options.state.read_text().splitlines() if options.state.exists() else []
    for number, way in islice(enumerate(ways()), len(kept), options.runs):
        outcome = {"run": number + 1, **asdict(way), **verdicts(way)}
        with options.state.open("a") as state:
            state.write(json.dumps(outcome) + "\n")
        print(
            f"{number + 1:3d}  {way}  exit {outcome['exit']}  {outcome['seconds']} s  {outcome['says'] or ''}",
            flush=True,
        )
    outcomes = [json.loads(line) for line in options.state.read_text().splitlines()[: options.runs]]
    different = [one["run"] for one in outcomes if one["results"] != outcomes[0]["results"]]
    print(
        f"{len(outcomes)} runs, "
        + (f"run {different} differ from the first" if different else "equal verdicts each time")
    )
    return 1 if different or any(one["exit"] for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
