"""Named defects and correct variants of the reference: the negative controls of the kit's suites."""

from collections.abc import Sequence

from leaseproof.controls.registry import Control

controls: Sequence[Control] = ()
