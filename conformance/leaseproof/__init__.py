"""leaseproof: a conformance kit for systems that run jobs from PostgreSQL rows under leases."""

__version__ = "0.1.0"
