"""Where modules are found. Owns the order of the import path, and needs no module that Python has not loaded yet."""

import os
import sys


def caller_last() -> None:
    """Move the caller's folder from the front of the path, where `python -m` or PYTHONPATH put it, to its end.

    The processes of a run look for modules in the same order. A folder that is gone is left to the command line.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib would be looked for in the caller's folder
    except OSError:
        return
    front = 0 if sys.flags.safe_path else 1
    if variable := os.environ.get("PYTHONPATH"):
        front += len(variable.split(os.pathsep))
    sys.path[:front] = [one for one in sys.path[:front] if os.path.realpath(one) != here]
    if here not in sys.path:
        sys.path.append(here)
