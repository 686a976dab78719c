"""Plugins of the kit's own tests."""

pytest_plugins = ["fix_reference", "pytester"]
