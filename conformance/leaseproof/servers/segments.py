"""System V segments of killed servers: owns giving them back; must not touch any but those of a given data folder.

PostgreSQL keeps a small segment as an interlock, and names it in postmaster.pid (line 7: key and id). A server that is
killed with SIGKILL leaves it behind, until the machine restarts.
"""

import ctypes
from pathlib import Path

LOCK_FILE = "postmaster.pid"
IPC_RMID = 0
LIBC = ctypes.CDLL(None)


def release(data: Path) -> None:
    """Remove the segment of the data folder, whose server is dead, where it still exists."""
    try:
        key, identifier = (int(word) for word in (data / LOCK_FILE).read_text().splitlines()[6].split())
    except (OSError, IndexError, ValueError):
        return  # the server ended well, or had none yet
    if LIBC.shmget(ctypes.c_int(key), 0, 0) == identifier:
        LIBC.shmctl(identifier, IPC_RMID, None)
