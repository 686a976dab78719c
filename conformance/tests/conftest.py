"""Plugins of the kit's own tests."""

pytest_plugins = ["leaseproof.servers.plugin", "fix_reference", "pytester"]
