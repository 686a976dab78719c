"""The fact log: one line a fact, on disk at once; a log that is not whole says so."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leaseproof.evidence.facts import FactLog, FactsNotWritten, bounded, read_log, read_logs


def make(folder: Path, process: str = "main") -> FactLog:
    return FactLog(folder, process, run="r0000000", plan_sha256="0" * 64)


def test_a_log_that_ended_well_is_complete(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.write("started", system="subject", check="test_a")
    log.write("finished", system="subject", check="test_a", outcome="passed")
    log.close(well=True)
    read = read_log(log.path)
    assert [fact["kind"] for fact in read.facts] == ["opened", "started", "finished", "closed"]
    assert (read.complete, read.torn, read.facts[-1]["finished"]) == (True, False, 1)
    assert all(fact["process"] == "main" and fact["at"].endswith("Z") for fact in read.facts)


def test_a_log_without_closed_is_not_complete(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.close(well=False)
    assert not read_log(log.path).complete


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_seen_and_left_out(tmp_path: Path, cut: int) -> None:
    log = make(tmp_path)
    log.close(well=True)
    os.truncate(log.path, log.path.stat().st_size - cut)
    read = read_log(log.path)
    assert (read.complete, read.torn) == (False, True)
    assert [fact["kind"] for fact in read.facts] == ["opened"]


@pytest.mark.parametrize("line", ["rubbish", "[]", "{}", '{"kind": 3}'])
def test_nothing_after_a_line_that_is_no_fact_is_believed(tmp_path: Path, line: str) -> None:
    log = make(tmp_path)
    log.close(well=True)
    first, rest = log.path.read_text().split("\n", 1)
    log.path.write_text(f"{first}\n{line}\n{rest}")
    read = read_log(log.path)
    assert (len(read.facts), read.complete, read.torn) == (1, False, True)


def test_a_result_that_was_taken_out_leaves_the_log_incomplete(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.write("finished", system="subject", check="test_a", outcome="refuted")
    log.close(well=True)
    lines = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(line for line in lines if "refuted" not in line))
    assert not read_log(log.path).complete


def test_a_second_process_of_the_same_name_is_refused(tmp_path: Path) -> None:
    make(tmp_path).close(well=True)
    with pytest.raises(FactsNotWritten, match="File exists"):
        make(tmp_path)


def test_main_comes_first(tmp_path: Path) -> None:
    for process in ("gw0", "main", "gw1"):
        make(tmp_path, process).close(well=True)
    assert [log.process for log in read_logs(tmp_path)] == ["main", "gw0", "gw1"]


def test_what_is_written_is_bounded_and_free_of_secrets() -> None:
    assert len(bounded("x" * 100_000)) < 5000
    assert "hunter2" not in json.dumps(bounded({"dsn": ["postgresql://me:hunter2@db/x"]}))
    assert bounded("\ud800") == "\\ud800"
    assert bounded({1: object}) == {"1": "<class 'object'>"}
    json.dumps(bounded([[[[[1]]]], {"a": {"b": {"c": {"d": 1}}}}, math.inf]), allow_nan=False)


def test_a_full_disk_stops_the_log_for_good(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk: the write is cut short, then refused."""
    program = (
        "import sys; from pathlib import Path\n"
        "from leaseproof.evidence.facts import FactLog, FactsNotWritten\n"
        "log = FactLog(Path(sys.argv[1]), 'main', run='r', plan_sha256='0')\n"
        "refused = 0\n"
        "for number in range(40):\n"
        "    try: log.write('started', check='x' * 100)\n"
        "    except FactsNotWritten: refused += 1\n"
        "try: log.close(well=True)\n"
        "except FactsNotWritten: print(refused)\n"
    )

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    result = subprocess.run(
        [sys.executable, "-B", "-c", program, str(tmp_path)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) > 20
    read = read_log(tmp_path / "main.jsonl")
    assert not read.complete
    assert "closed" not in {fact["kind"] for fact in read.facts}


def test_a_log_that_was_rewritten_is_not_complete(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.write("finished", system="subject", check="test_a", outcome="refuted")
    log.close(well=True)
    log.path.write_text(log.path.read_text().replace("refuted", "passed"))
    assert not read_log(log.path).complete
