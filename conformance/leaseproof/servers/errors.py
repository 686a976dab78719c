"""The one error of this room. Owns `ServersError`; must not touch anything else."""


class ServersError(Exception):
    """Servers can't be had: the text says what happened, to which thing, and what to do. Never a password in it."""
