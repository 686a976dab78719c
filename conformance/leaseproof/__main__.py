"""`python -m leaseproof`. Owns nothing but the call."""

from leaseproof.cli import main

main()
