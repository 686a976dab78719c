"""The rules that this kit judges by, as digests. Owns nothing but their look-up."""

from functools import cache

from leaseproof.claims.catalogue import load_catalogue
from leaseproof.claims.lock import load_lock


@cache
def digests() -> tuple[str, str]:
    """Of the kit's own catalogue and checks.lock. Raises BadCatalogue and BadLock."""
    return load_catalogue().digest, load_lock().digest
