"""The helper process: imports the task functions once, and forks a child for each order.

It has one thread, no MongoDB client and none of the executor's files, so that a fork of it is safe. It does only
what must be done from outside a child; the rest is the child's. It ends with the executor, and what runs below it
ends with it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from tidemill.errors import RegistrationError
from tidemill.isolation import child, linux
from tidemill.isolation.frames import send
from tidemill.isolation.guard import Guard
from tidemill.isolation.killing import kill
from tidemill.isolation.wire import RUN
from tidemill.registry import Registry, load

_LOOK_SEC: Final = 1.0
"""How often to look for the executor, where a fork of it holds its end of the connection open."""


def main(control_fd: str, executor: str, package: str) -> None:
    """Serve the process *executor* over the socket *control_fd* with the functions of *package*."""
    _open_standard_files()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    linux.adopt_orphans()
    with socket.socket(fileno=int(control_fd)) as control:
        control.set_inheritable(False)
        guard = Guard(control)
        try:
            registry = load(package)
        except RegistrationError as error:
            send(control, {"failed": str(error)})
            return
        _settle_down()
        send(control, {"ready": True})
        _Forkserver(control, executor=int(executor), registry=registry, guard=guard).serve()


class _Forkserver:
    def __init__(self, control: socket.socket, *, executor: int, registry: Registry, guard: Guard) -> None:
        self._control = control
        self._executor = executor
        self._registry = registry
        self._guard = guard
        self._kept = linux.children()  # the guard, and what the task modules have started
        self._watches: dict[int, socket.socket] = {}  # by the id of the child
        self._wakes, self._woken_by = socket.socketpair()
        self._selector = selectors.PollSelector()
        self._serving = True

    def serve(self) -> None:
        """Fork, kill and bury until the executor wants no more, or is gone."""
        self._hear_of_deaths()
        self._selector.register(self._control, selectors.EVENT_READ, self._take)
        try:
            while self._serving and os.getppid() == self._executor:
                for key, _ in self._selector.select(_LOOK_SEC):
                    key.data()
        finally:
            self._end()

    def _hear_of_deaths(self) -> None:
        for end in (self._wakes, self._woken_by):
            end.settimeout(0)
        signal.set_wakeup_fd(self._woken_by.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only a signal with a handler wakes
        self._selector.register(self._wakes, selectors.EVENT_READ, self._bury)

    def _take(self) -> None:
        word, fds, _, _ = socket.recv_fds(self._control, 1, 2)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        for one in sockets:
            one.set_inheritable(False)
            one.settimeout(None)  # whatever a task module has made the default
        if word == RUN and len(sockets) == 2:  # noqa: PLR2004 - as RUN says
            talk, watch = sockets
            self._fork(talk, watch)
            talk.close()
        else:
            self._serving = False

    def _fork(self, talk: socket.socket, watch: socket.socket) -> None:
        forkserver = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(watch, refused=f"no process can be started ({error.strerror})")
            return
        if pid == 0:
            self._become_child(talk, watch, forkserver=forkserver)
        with contextlib.suppress(OSError):  # the child does it, too: whoever comes first
            os.setpgid(pid, pid)
        self._watches[pid] = watch
        self._guard.add(pid)
        self._selector.register(watch, selectors.EVENT_READ, functools.partial(self._dismiss, pid))
        _tell(watch, forked=pid)

    def _become_child(self, talk: socket.socket, watch: socket.socket, *, forkserver: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._guard.let_go()
            for one in (self._control, self._wakes, self._woken_by, watch, *self._watches.values()):
                one.close()
            child.live(talk, self._registry, forkserver=forkserver)
        finally:
            os._exit(child.BROKEN)  # not one step of the forkserver's own

    def _dismiss(self, pid: int) -> None:
        """Kill a child: its executor says so, or has gone."""
        if pid in self._watches:
            self._selector.unregister(self._watches[pid])
            kill(pid)

    def _bury(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakes.recv(4096):
                pass
        for pid, status in _dead():
            self._kept.discard(pid)
            self._serving = self._serving and pid != self._guard.pid
            if pid in self._watches:
                self._part_with(pid, status)
        self._kill_strays()

    def _part_with(self, pid: int, status: int) -> None:
        kill(pid)  # what is left of its group keeps the number from being given to others
        self._guard.drop(pid)
        with self._watches.pop(pid) as watch:
            with contextlib.suppress(KeyError):  # it was dismissed
                self._selector.unregister(watch)
            _tell(watch, ended=status)

    def _kill_strays(self) -> None:
        """Kill what left the group of a child and has outlived it."""
        for pid in linux.children() - self._kept - self._watches.keys():
            kill(pid)

    def _end(self) -> None:
        for pid in self._watches:
            kill(pid)
        with contextlib.suppress(OSError):  # the guard may be gone
            for pid in list(self._watches):
                self._part_with(pid, os.waitpid(pid, 0)[1])
            self._kill_strays()
            self._guard.let_go()
            os.waitpid(self._guard.pid, 0)


def _dead() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _tell(watch: socket.socket, **fact: Any) -> None:  # noqa: ANN401 - as BSON has it
    with contextlib.suppress(OSError):  # who asked is gone
        send(watch, fact)


def _open_standard_files() -> None:
    """Fill those of the first three descriptors that are closed: what functions print must not get into a socket."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error
        os.dup2(fd, fd)
    os.close(fd)


def _settle_down() -> None:
    """Make what was imported cheap to share, and leave nothing half-written that every child would write."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    gc.collect()
    gc.freeze()
