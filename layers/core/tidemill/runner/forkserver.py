"""The forkserver, which messages call the helper process: import the task functions once, fork a child for each run.

It has one thread, no MongoDB client and no file of the executor, so that forking it is safe. It does only what cannot
be done inside a child. It ends with the executor, and its children end with it: a reaper process kills what is left.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import selectors
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from tidemill.errors import RegistrationError
from tidemill.module_faults import describe_faults
from tidemill.registry import Registry, load_package
from tidemill.runner import child
from tidemill.runner.child import kill_with_group
from tidemill.runner.output import log_as_json
from tidemill.runner.process_protocol import JSON_LOG, RUN, send_message

_EXECUTOR_POLL_INTERVAL_SEC: Final = 1.0
"""Interval to check for the executor: a fork of it may keep its end of the connection open."""

_MAX_WAKEUP_BYTES: Final = 4096


def main(control_fd: str, executor: str, package: str, log: str) -> None:
    """Serve the process *executor* over the socket *control_fd* with the functions of *package*.

    *log* is the form of the log lines of functions, `JSON_LOG` or `PLAIN_LOG`.
    """
    _open_standard_files()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    child.become_subreaper()
    with socket.socket(fileno=int(control_fd)) as control:
        control.set_inheritable(False)
        reaper = Reaper(control)
        reaper.add_group(os.getpid())  # task modules may start processes, which outlive this one if it is killed
        if log == JSON_LOG:
            log_as_json()
        try:
            registry = _load_functions(package)
        except RegistrationError as error:
            send_message(control, {"failed": str(error)})
            return
        _prepare_for_forks()
        send_message(control, {"ready": True})
        _Forkserver(control, executor=int(executor), registry=registry, reaper=reaper).serve()


def _load_functions(package: str) -> Registry:
    """Return the functions of *package*. The executor reports faults; without any function they end this process."""
    loaded = load_package(package)
    if loaded.faults and not len(loaded.registry):
        raise RegistrationError(describe_faults(loaded.faults))
    return loaded.registry


def _open_standard_files() -> None:
    """Open closed standard descriptors on /dev/null, so that no socket gets their number and receives printed text."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - standard error
        os.dup2(fd, fd)
    os.close(fd)


def _prepare_for_forks() -> None:
    """Keep imported objects in shared memory pages, and flush output that every child would write again."""
    child.flush_output()
    gc.collect()
    gc.freeze()


class _Forkserver:
    def __init__(self, control: socket.socket, *, executor: int, registry: Registry, reaper: Reaper) -> None:
        self._control = control
        self._executor = executor
        self._registry = registry
        self._reaper = reaper
        self._permanent_children = child.list_children()  # the reaper, and processes that task modules started
        self._watch_sockets: dict[int, socket.socket] = {}  # by the process id of the child
        self._wakeup_read, self._wakeup_write = socket.socketpair()
        self._selector = selectors.PollSelector()
        self._is_serving = True

    def serve(self) -> None:
        """Fork, kill and reap children until the executor quits or is gone."""
        self._watch_for_exits()
        self._selector.register(self._control, selectors.EVENT_READ, self._handle_request)
        try:
            while self._is_serving and os.getppid() == self._executor:
                for key, _ in self._selector.select(_EXECUTOR_POLL_INTERVAL_SEC):
                    key.data()
        finally:
            self._end_children()

    def _watch_for_exits(self) -> None:
        for end in (self._wakeup_read, self._wakeup_write):
            end.settimeout(0)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only a signal with a handler writes to the wakeup socket
        self._selector.register(self._wakeup_read, selectors.EVENT_READ, self._reap_children)

    def _handle_request(self) -> None:
        request, fds, _, _ = socket.recv_fds(self._control, 1, 2)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        for end in sockets:
            end.set_inheritable(False)
            end.settimeout(None)  # a task module may have set a default timeout
        if request == RUN and len(sockets) == 2:  # noqa: PLR2004 - see RUN
            run_socket, watch_socket = sockets
            self._fork_child(run_socket, watch_socket)
            run_socket.close()
        else:
            self._is_serving = False

    def _fork_child(self, run_socket: socket.socket, watch_socket: socket.socket) -> None:
        forkserver = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _notify(watch_socket, refused=f"no process can be started ({error.strerror})")
            return
        if pid == 0:
            self._become_child(run_socket, watch_socket, forkserver=forkserver)
        with contextlib.suppress(OSError):  # the child sets its group as well; the earlier call wins
            os.setpgid(pid, pid)
        self._watch_sockets[pid] = watch_socket
        self._reaper.add_group(pid)
        self._selector.register(watch_socket, selectors.EVENT_READ, functools.partial(self._kill_child, pid))
        _notify(watch_socket, forked=pid)

    def _become_child(self, run_socket: socket.socket, watch_socket: socket.socket, *, forkserver: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._reaper.disconnect()
            ends = (self._control, self._wakeup_read, self._wakeup_write, watch_socket, *self._watch_sockets.values())
            for end in ends:
                end.close()
            child.run_and_exit(run_socket, self._registry, forkserver=forkserver)
        finally:
            os._exit(child.EXIT_CODE_BROKEN)  # the child must never run code of the forkserver

    def _kill_child(self, pid: int) -> None:
        """Kill a child at the request of its executor, or because the executor is gone."""
        if pid in self._watch_sockets:
            self._selector.unregister(self._watch_sockets[pid])
            kill_with_group(pid)

    def _reap_children(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup_read.recv(_MAX_WAKEUP_BYTES):
                pass
        for pid, status in _reap_ended():
            self._permanent_children.discard(pid)
            self._is_serving = self._is_serving and pid != self._reaper.pid
            if pid in self._watch_sockets:
                self._forget_child(pid, status)
        self._kill_orphans()

    def _forget_child(self, pid: int, status: int) -> None:
        kill_with_group(pid)  # before the group is forgotten: its processes keep the number from being reused
        self._reaper.remove_group(pid)
        with self._watch_sockets.pop(pid) as watch_socket:
            with contextlib.suppress(KeyError):  # `_kill_child` has unregistered it
                self._selector.unregister(watch_socket)
            _notify(watch_socket, ended=status)

    def _kill_orphans(self) -> None:
        """Kill processes that left the group of a child and have outlived the child."""
        for pid in child.list_children() - self._permanent_children - self._watch_sockets.keys():
            kill_with_group(pid)

    def _end_children(self) -> None:
        for pid in self._watch_sockets:
            kill_with_group(pid)
        with contextlib.suppress(OSError):  # the reaper may be gone
            for pid in list(self._watch_sockets):
                self._forget_child(pid, os.waitpid(pid, 0)[1])
            for pid in child.list_children() - {self._reaper.pid}:  # orphans, and what task modules started
                kill_with_group(pid)
            self._reaper.remove_group(os.getpid())
            self._reaper.disconnect()
            os.waitpid(self._reaper.pid, 0)


def _reap_ended() -> Iterator[tuple[int, int]]:
    """Reap every ended child; yield its process id and exit status."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _notify(watch_socket: socket.socket, **message: Any) -> None:  # noqa: ANN401 - any BSON value
    with contextlib.suppress(OSError):  # the executor is gone
        send_message(watch_socket, message)


_GROUP_RECORD: Final = struct.Struct("<i")  # the number of a process group; negative once the group is gone
_MAX_RECORD_BYTES: Final = 1024 * _GROUP_RECORD.size  # whole records, since a write of one is atomic


class Reaper:
    """The forkserver's handle on the reaper, a process that kills the remaining groups once the forkserver ends.

    It must be the first child: it is forked before any task module is imported.

    Args:
        control: The connection to the executor. Its end shows the reaper that the executor has ended.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self, control: socket.socket) -> None:
        read_fd, self._write_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write_fd)
                _reap_groups(read_fd, control, forkserver=os.getppid())
            finally:
                os._exit(0)
        os.close(read_fd)

    def add_group(self, group: int) -> None:
        """Have *group* killed when this process ends."""
        os.write(self._write_fd, _GROUP_RECORD.pack(group))

    def remove_group(self, group: int) -> None:
        """Forget *group*, which is killed: the system may give its number to another group."""
        os.write(self._write_fd, _GROUP_RECORD.pack(-group))

    def disconnect(self) -> None:
        """Close the pipe to the reaper. To the reaper this process then counts as ended."""
        os.close(self._write_fd)


def _reap_groups(read_fd: int, control: socket.socket, *, forkserver: int) -> None:
    os.setpgid(0, 0)  # signals to the forkserver's group must not reach the reaper
    poll = select.poll()
    poll.register(read_fd, select.POLLIN)
    poll.register(control, 0)  # reports its end only
    groups: set[int] = set()
    while True:
        ready = dict(poll.poll())
        if control.fileno() in ready:
            poll.unregister(control)
            if os.getppid() == forkserver:
                os.kill(forkserver, signal.SIGKILL)
        if read_fd in ready and not _update_groups(groups, os.read(read_fd, _MAX_RECORD_BYTES)):
            break
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _update_groups(groups: set[int], data: bytes) -> bool:
    """Add and remove the groups in *data*; return false at the end of the pipe."""
    for (group,) in _GROUP_RECORD.iter_unpack(data):
        if group > 0:
            groups.add(group)
        else:
            groups.discard(-group)
    return bool(data)
