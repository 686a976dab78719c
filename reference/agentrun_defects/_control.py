"""How a variant of the reference becomes a control. Owns the registration; the variants stand beside it, by family.

A defect is a subclass of the repository or the service, or SQL that spoils the installed schema. Its docstring says
what it does wrong.
"""

from collections.abc import Callable, Iterable
from typing import LiteralString, TypeVar

from agentrun_reference.conformance import ReferenceSystem
from agentrun_reference.repository import AgentRunRepository
from agentrun_reference.service import AgentRunService
from leaseproof.controls.registry import Control
from leaseproof.system import System

Part = TypeVar("Part", bound=type[AgentRunRepository] | type[AgentRunService])

registered: dict[str, Control] = {}


def _register(control: Control) -> None:
    if control.id in registered:
        raise ValueError(f"control {control.id!r} stands twice")
    registered[control.id] = control


def assembled(part: type[AgentRunRepository] | type[AgentRunService]) -> System:
    """The reference with one part replaced."""
    if issubclass(part, AgentRunRepository):
        return ReferenceSystem(repository=part)
    return ReferenceSystem(service=part)


def defect(
    identity: str, *, refutes: str, caught_by: str, because: str, also: Iterable[str] = ()
) -> Callable[[Part], Part]:
    """Register the decorated part as a defect; see `Control` for the fields."""

    def register(part: Part) -> Part:
        _register(
            Control(
                identity,
                "defect",
                ReferenceSystem.name,
                (part.__doc__ or "").strip(),
                lambda: assembled(part),
                refutes=refutes,
                caught_by=caught_by,
                because=because,
                also=frozenset(also),
            )
        )
        return part

    return register


def system_defect(
    identity: str,
    says: str,
    system: Callable[[], System],
    *,
    refutes: str,
    caught_by: str,
    because: str,
    also: Iterable[str] = (),
) -> None:
    """Register a defect that is a system of its own."""
    _register(
        Control(
            identity,
            "defect",
            ReferenceSystem.name,
            says,
            system,
            refutes=refutes,
            caught_by=caught_by,
            because=because,
            also=frozenset(also),
        )
    )


def schema_defect(
    identity: str,
    says: str,
    after_install: LiteralString,
    *,
    refutes: str,
    caught_by: str,
    because: str,
    also: Iterable[str] = (),
) -> None:
    """Register a defect of the schema: SQL that the owner runs on the current release, installed or upgraded to."""
    system_defect(
        identity,
        says,
        lambda: ReferenceSystem(after_install=after_install),
        refutes=refutes,
        caught_by=caught_by,
        because=because,
        also=also,
    )


def variant(identity: str, says: str, system: Callable[[], System]) -> None:
    """Register a correct variant."""
    _register(Control(identity, "variant", ReferenceSystem.name, says, system))
