"""Follows the fact logs of a run while they grow. Owns only how far they were read; what it yields decides nothing."""

import json
from pathlib import Path
from typing import Any


class Follower:
    """Reads what the logs in a folder gained since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def read(self) -> list[dict[str, Any]]:
        """The new facts, whole lines only."""
        facts: list[dict[str, Any]] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            facts += [json.loads(line) for line in whole.splitlines()]
        return facts
