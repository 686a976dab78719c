"""What a person sees while a run lasts. Owns the live display; quiet where nobody looks."""

from collections import Counter
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from leaseproof.cli.terminal import errors, shown
from leaseproof.evidence.plan import SUBJECT


class Live:
    """Follows the facts of a run on a terminal: how many checks are done, which one runs, how the subject fared."""

    def __init__(self, total: int) -> None:
        screen = errors()
        self.watched = screen.is_terminal
        self._outcomes: Counter[str] = Counter()
        self._running: dict[str, str] = {}
        self._progress = Progress(
            TextColumn("[bold]leaseproof"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=screen,
            transient=True,
            disable=not self.watched,
        )
        self._task = self._progress.add_task("starting servers", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, facts: list[dict[str, Any]]) -> None:
        """Take in what the logs gained."""
        for fact in facts:
            if fact["kind"] == "started":
                self._running[fact["process"]] = f"{fact['check']} on {fact['system']}"
            elif fact["kind"] == "finished":
                self._running.pop(fact["process"], None)
                self._outcomes[fact["outcome"] if fact["system"] == SUBJECT else "on controls"] += 1
        if facts:
            counts = " · ".join(f"{count} {outcome}" for outcome, count in sorted(self._outcomes.items()))
            running = next(iter(self._running.values()), "")
            self._progress.update(
                self._task, completed=self._outcomes.total(), description=shown(f"{counts}  {running}")
            )
