"""A process that outlives the forkserver by a moment, and takes with it what the forkserver leaves behind.

A child is killed by the kernel when the forkserver dies, but what that child has started is not. The guard knows
the process group of every child and kills them all once the forkserver has ended, which it sees to when the
executor has.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
from typing import Final

_RECORD: Final = struct.Struct("<i")  # the number of a group; negative: it is gone
_READ_BYTES: Final = 1024 * _RECORD.size


class Guard:
    """The forkserver's end: starts the guard, which is to be its first child, and tells it of process groups.

    Args:
        control: The connection to the executor, which the executor closes by ending.

    Raises:
        OSError: There is no room for a process.
    """

    def __init__(self, control: socket.socket) -> None:
        reads, self._writes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._writes)
                _keep(reads, control, forkserver=os.getppid())
            finally:
                os._exit(0)
        os.close(reads)

    def add(self, group: int) -> None:
        """Have *group* killed when this process ends."""
        os.write(self._writes, _RECORD.pack(group))

    def drop(self, group: int) -> None:
        """Forget *group*, which is killed: its number may become somebody else's."""
        os.write(self._writes, _RECORD.pack(-group))

    def let_go(self) -> None:
        """Have no part in the guard any more, as if this process had ended."""
        os.close(self._writes)


def _keep(reads: int, control: socket.socket, *, forkserver: int) -> None:
    os.setpgid(0, 0)  # what is sent to the forkserver's group is not for the guard
    poll = select.poll()
    poll.register(reads, select.POLLIN)
    poll.register(control, 0)  # only to be told of its end
    groups: set[int] = set()
    while True:
        ready = dict(poll.poll())
        if control.fileno() in ready:
            poll.unregister(control)
            if os.getppid() == forkserver:
                os.kill(forkserver, signal.SIGKILL)
        if reads in ready and not _noted(groups, os.read(reads, _READ_BYTES)):
            break
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _noted(groups: set[int], data: bytes) -> bool:
    for (group,) in _RECORD.iter_unpack(data):
        if group > 0:
            groups.add(group)
        else:
            groups.discard(-group)
    return bool(data)
