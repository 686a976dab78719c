"""The fact log: what each process of a run saw, one JSON object a line, on disk before the next thing happens.

Owns the writing and the reading of `<process>.jsonl`; must not judge. A line is one `write` and one `fsync` (0.2 ms
on an ordinary disk), so a killed process leaves at most one torn line, the last.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leaseproof.evidence.redact import redact

MAX_TEXT = 4000
MAX_NOTES = 64


class FactsNotWritten(Exception):
    """The log could not be written: what this process saw from here on is lost, so it must stop."""


def now() -> str:
    """The time of a fact, UTC, ISO 8601 with a Z."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def bounded(value: object, depth: int = 3) -> Any:
    """`value` as JSON that a log can hold: secrets taken out, long texts cut, foreign types as text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and depth:
        items = list(value.items())[:MAX_NOTES]
        return {bounded(str(key)): bounded(item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple) and depth:
        return [bounded(item, depth - 1) for item in value[:MAX_NOTES]]
    text = redact(value if isinstance(value, str) else repr(value))
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text)} characters)"


class FactLog:
    """The log of one process. Raises FactsNotWritten where the disk refuses; the log then stays without `closed`."""

    def __init__(self, folder: Path, process: str, *, run: str, plan_sha256: str) -> None:
        self.process = process
        self.path = folder / f"{process}.jsonl"
        self.finished = 0
        self._broken = False
        self._digest = hashlib.sha256()
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise FactsNotWritten(f"can't make the fact log {self.path}: {error.strerror}") from error
        self.write("opened", run=run, plan_sha256=plan_sha256)

    def write(self, kind: str, **fields: object) -> None:
        """Append one fact; it is on disk when this returns."""
        if self._broken:
            raise FactsNotWritten(f"the fact log {self.path} failed before")
        fact = {"kind": kind, "process": self.process, **fields, "at": now()}
        line = (json.dumps(fact, ensure_ascii=False, allow_nan=False) + "\n").encode()
        try:
            written = os.write(self._fd, line)
            os.fsync(self._fd)
        except OSError as error:
            self._broken = True
            raise FactsNotWritten(f"can't write to the fact log {self.path}: {error.strerror}") from error
        if written != len(line):
            self._broken = True
            raise FactsNotWritten(f"the fact log {self.path} took only a part of a line: no space left")
        self._digest.update(line)
        self.finished += kind == "finished"

    def close(self, *, well: bool) -> None:
        """Release the file; `well` writes `closed` before, without which the log decides nothing."""
        try:
            if well:
                self.write("closed", finished=self.finished, sha256=self._digest.hexdigest())
        finally:
            os.close(self._fd)


@dataclass(frozen=True)
class Log:
    """A log as read. `complete` when its process ended well; `torn` when its last line is not whole."""

    process: str
    facts: tuple[dict[str, Any], ...]
    complete: bool
    torn: bool
    sha256: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The facts of one kind, in order."""
        return [fact for fact in self.facts if fact["kind"] == kind]


def read_log(path: Path) -> Log:
    """Read one log. A line that is no fact ends what is believed of it."""
    data = path.read_bytes()
    facts: list[dict[str, Any]] = []
    torn = not data.endswith(b"\n")
    for line in data.split(b"\n")[:-1]:
        try:
            fact = json.loads(line)
        except ValueError:
            torn = True
            break
        if not isinstance(fact, dict) or not isinstance(fact.get("kind"), str):
            torn = True
            break
        facts.append(fact)
    complete = (
        not torn
        and bool(facts)
        and facts[0]["kind"] == "opened"
        and facts[-1]["kind"] == "closed"
        and facts[-1].get("finished") == sum(fact["kind"] == "finished" for fact in facts)
        and facts[-1].get("sha256") == hashlib.sha256(data[: data[:-1].rfind(b"\n") + 1]).hexdigest()
    )
    return Log(path.stem, tuple(facts), complete, torn, hashlib.sha256(data).hexdigest())


def read_logs(folder: Path) -> tuple[Log, ...]:
    """All logs of a run, `main` first."""
    paths = sorted(folder.glob("*.jsonl"), key=lambda path: (path.stem != "main", path.stem))
    return tuple(read_log(path) for path in paths)
