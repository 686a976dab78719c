"""Plugins of the kit's own tests; and interrupts, which a shell's background job ignores and hands down ignored."""

import signal
import sys
from pathlib import Path

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["fix_reference", "pytester"]


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command tried in this process finds nothing in the folder of the tests, and leaves the path as it was."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place and Path(place).resolve() != Path.cwd()])
