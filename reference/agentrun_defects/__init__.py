"""Named defects and correct variants of the reference: the negative controls of the kit's suites.

Owns the list that the entry point group `leaseproof.controls` names; each family of defects is a module.
"""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from agentrun_defects._control import registered
from leaseproof.controls.registry import Control

for _module in sorted(found.name for found in iter_modules(__path__)):
    if not _module.startswith("_"):
        import_module(f"{__name__}.{_module}")

controls: Sequence[Control] = tuple(registered.values())
