"""The pipe between the command and its run. Owns the rule that a run does not outlive the command that started it."""

import os
import signal
import threading


def hold(descriptor: int) -> None:
    """End this process group at once when the other end of the pipe closes, however its holder died.

    Only for a process that leads a group of its own: the group dies by SIGKILL.
    """
    if os.getpgrp() != os.getpid():
        raise ValueError("a lifeline belongs to the leader of a process group")
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
