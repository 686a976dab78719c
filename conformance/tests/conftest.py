"""Plugins of the kit's own tests; and interrupts, which a shell's background job ignores and hands down ignored."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["fix_reference", "pytester"]
