"""A compact reference implementation: agent runs as PostgreSQL rows, owned through leases."""

__version__ = "1.0"
