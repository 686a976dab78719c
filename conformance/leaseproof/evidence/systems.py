"""The systems of a run inside a process of it. Owns their making, once each; must not call their operations."""

from leaseproof.controls.registry import Control, load_controls
from leaseproof.evidence.plan import SUBJECT
from leaseproof.loading import load_system
from leaseproof.system import System


class Systems:
    """Gives each system by the plan's name for it: `subject`, or the id of a control."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: dict[str, System] = {}
        self._controls: dict[str, Control] | None = None

    def get(self, system: str) -> System:
        """The system; made at its first use. Raises WrongSystem, KeyError, or what a control's making raises."""
        if system not in self._made:
            self._made[system] = self._make(system)
        return self._made[system]

    def _make(self, system: str) -> System:
        if system == SUBJECT:
            return load_system(self._name).system
        if self._controls is None:
            self._controls = load_controls(self.get(SUBJECT).name)
        return self._controls[system].system()
