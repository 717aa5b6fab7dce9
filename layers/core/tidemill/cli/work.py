"""``tidemill work``: a worker, which is an executor in a process of its own that runs until it is stopped.

`Watch` stops the worker on signals and reports its errors.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any, Final, NoReturn, Self, TextIO

import click
from click import option
from pymongo.database import Database

from tidemill import indexes
from tidemill.bootstrap import deployment
from tidemill.cli.commands import Command, parse_setting, parse_text
from tidemill.cli.output import OutputError, print_text, warn
from tidemill.control import queues, task_types
from tidemill.documents import TASKS
from tidemill.errors import MissingIndexError, TidemillError, UnavailableError
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import work as run_worker
from tidemill.executor.lifetime import WORKER_LEASE, WORKER_REMAINING, Worker
from tidemill.model import LANES, SELECTIONS, Lane, Selection
from tidemill.requests.tasks import QUEUE_PATTERN
from tidemill.runner.resources import close_process_resources
from tidemill.store import counts
from tidemill.store.connection import open_tasks, translate_errors
from tidemill.text import did_you_mean

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ERROR_POLL_SEC: Final = 0.25
"""Time between two looks at the worker's errors while no signal comes."""

_UNUSED_INDEXES: Final = frozenset({indexes.KEY, indexes.FAILED})
"""Indexes of tasks that a worker does not need."""

_WITHOUT_THEM: Final = "enqueues with an idempotency key or the archive may fail"

_MAX_READ_BYTES: Final = 64
"""Signal numbers read at once, one byte each."""

_SIGNAL_STATUS_BASE: Final = 128
"""Added to the number of a signal it gives the exit status, as in a shell."""


@click.command(
    "work", cls=Command, help="Run due tasks until stopped.", example="tidemill work --tasks myapp.tasks --queue eu"
)
@option(
    "--queue",
    "queues",
    multiple=True,
    type=parse_text(QUEUE_PATTERN, "use up to 63 letters, digits, _ . and -"),
    metavar="NAME",
    help="Serve this queue; may be repeated. Default: all queues.",
)
@option("--lane", type=click.Choice(LANES), metavar="LANE", help=f"Serve only this lane: {' or '.join(LANES)}.")
@option(
    "--selection",
    type=click.Choice(SELECTIONS),
    metavar="ORDER",
    help=f"Order in which the lanes are served: {', '.join(SELECTIONS)}.",
)
@option(
    "--concurrency",
    type=parse_setting("CONCURRENCY", lambda settings: settings.concurrency),
    metavar="N",
    help="Number of tasks that run at once. Default: CONCURRENCY, or 16.",
)
@option(
    "--batch-size",
    type=parse_setting("BATCH_SIZE", lambda settings: settings.batch_size),
    metavar="N",
    help="Maximum number of tasks of one claim. Default: BATCH_SIZE, or 100.",
)
@option(
    "--tasks",
    "package",
    type=parse_setting("TASK_PACKAGE", lambda settings: settings.task_package),
    metavar="PACKAGE",
    help="Package of task modules, also found in the current directory. Default: TASK_PACKAGE, or tasks.",
)
@option("--until-empty", is_flag=True, help="Exit when no task is due.")
def work(*, until_empty: bool, package: str | None, **choices: Any) -> None:  # noqa: ANN401 - of _build_options
    """Run a worker until a signal stops it, or until no task is due."""
    threads = threading.enumerate()
    if sys.stdout is None:
        _discard_stdout()  # otherwise a connection gets the descriptor that is stdout in every child
    stop = threading.Event()
    worker = Worker(stop, stays=not until_empty)
    with (
        OwnStreams() as streams,
        Watch(
            worker,
            stop=stop,
            leave=lambda number: _exit_at_once(number, streams, has_begun=watch.has_begun),
            warn=streams.warn,
        ) as watch,
    ):
        sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
        package = package or deployment().settings.task_package
        runtime = deployment().make_worker_runtime(package)
        options = _build_options(**choices)
        warning = _require_indexes(runtime.tasks.database)
        if warning is not None:
            streams.warn(warning)
        for queue in options.queues:
            _warn_if_unknown(runtime.tasks.database, queue, streams)
        for fault in runtime.faults:
            streams.warn(f"warning: {fault}; its tasks wait for a release without the fault")
        watch.begin()
        try:
            streams.print(_describe_start(runtime, options, package=package))
            report = run_worker(runtime, options, worker)
        finally:
            if runtime.isolation is not None:
                runtime.isolation.close()
            close_process_resources()
        streams.print(_describe_end(report))
    runtime.tasks.database.client.close()
    _leave(report, threads)


def _build_options(
    *, queues: tuple[str, ...], lane: Lane | None, selection: Selection | None, concurrency: int | None,
    batch_size: int | None,
) -> ExecutionOptions:  # fmt: skip
    return ExecutionOptions(
        owner=f"work-{_read_host_name()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        remaining=WORKER_REMAINING,
        queues=tuple(dict.fromkeys(queues)),
        lanes=LANES if lane is None else (lane,),
        selection=selection,
        concurrency=concurrency,
        batch_size=batch_size,
    )


def _require_indexes(db: Database[Any]) -> str | None:
    """Return a warning if an index is missing that only others need.

    Raises:
        MissingIndexError: The worker could not claim or settle tasks.
    """
    with translate_errors():
        missing = {index.name for index in indexes.find_missing(db) if index.collection == TASKS and not index.expires}
    if missing - _UNUSED_INDEXES:
        raise MissingIndexError(TASKS)
    if not missing:
        return None
    return f"warning: an index is missing ({', '.join(sorted(missing))}), so {_WITHOUT_THEM}: run `tidemill indexes`"


def _warn_if_unknown(db: Database[Any], queue: str, streams: OwnStreams) -> None:
    known = {task_types.DEFAULT_QUEUE, *queues.list_configured_queues(db)}
    tasks = open_tasks(db)
    if queue in known or counts.count_pending(tasks, queue, limit=1) or counts.count_processing(tasks, queue, limit=1):
        return
    hint = did_you_mean(queue, known) or ";"
    streams.warn(f"warning: queue {queue} is not declared and has no tasks{hint} serving it anyway")


def _read_host_name() -> str:
    """Return the name of this machine with letters, digits and - only, for the name of the owner."""
    return re.sub("[^A-Za-z0-9-]", "-", platform.node().partition(".")[0])[:40] or "somewhere"


def _describe_start(runtime: Runtime, options: ExecutionOptions, *, package: str) -> str:
    queues = "all queues"
    if options.queues:
        queues = f"{'queue' if len(options.queues) == 1 else 'queues'} {', '.join(options.queues)}"
    lanes = "" if options.lanes == LANES else f", lane {options.lanes[0]}"
    functions = len(runtime.registry)
    prefix = f", collections {runtime.settings.prefix}*" if runtime.settings.prefix else ""
    release = f", release {runtime.settings.release}" if runtime.settings.release else ""
    return (
        f"{options.owner} serves {queues} of {runtime.tasks.database.name}{prefix}{lanes}: "
        f"up to {options.concurrency or runtime.settings.concurrency} tasks at once, "
        f"{functions} {'function' if functions == 1 else 'functions'} of {package}{release}"
    )


def _describe_end(report: Report) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in report.as_dict().items() if count)
    return f"stopped: {counts}" if counts else "stopped: there was nothing to do"


def _discard_stdout() -> None:
    """Redirect stdout to the null device, also for task functions."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open until the end


def _leave(report: Report, threads: Sequence[threading.Thread]) -> None:
    """Return, or end the process at once if a function left threads that would block or disturb its end.

    Raises:
        UnavailableError: MongoDB did not confirm the outcomes of some tasks.
    """
    unconfirmed = f"MongoDB did not confirm the outcome of {report['unknown']} tasks" if report["unknown"] else ""
    if report.spent:
        warn("this process has no threads left for functions: start another one")
    left_threads = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    if report.spent or report["leftovers"] or left_threads:
        if unconfirmed:
            warn(unconfirmed)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(1 if unconfirmed or report.spent else 0)
    if unconfirmed:
        raise UnavailableError(unconfirmed)


def _exit_at_once(number: int, streams: OwnStreams, *, has_begun: bool) -> NoReturn:
    if not has_begun:
        streams.warn("stopped before the worker started")
        os._exit(0)
    # Isolated functions end with this process. If they ended earlier, they would be settled as crashed.
    streams.warn(f"exited at once: reclaim returns the running tasks within {WORKER_LEASE.total_seconds():g} s")
    os._exit(_SIGNAL_STATUS_BASE + number)


class OwnStreams:
    """Context in which the worker prints to copies of stdout and stderr: task functions may close or replace theirs.

    What functions print is written line by line, also to a file or a pipe. At the end the copies take the place of
    ``sys.stdout`` and ``sys.stderr``.
    """

    def __enter__(self) -> Self:
        self._given = (sys.stdout, sys.stderr)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        self._stdout, self._stderr = map(_copy_stream, self._given)
        return self

    def __exit__(self, *_error: object) -> None:
        for stream in self._given:
            with suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def print(self, line: str) -> None:
        """Print *line* on stdout; if stdout takes no more, drop it and what is printed later."""
        try:
            print_text(line, stream=self._stdout)
            self._stdout.flush()
        except OutputError:
            _discard_stdout()
            self._stdout = sys.stdout

    def warn(self, sentence: str) -> None:
        """Print *sentence* on stderr; ignore a closed stderr."""
        warn(sentence, stream=self._stderr)


def _copy_stream(stream: TextIO) -> TextIO:
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # it is closed, or there is no file behind it
        return stream
    return open(descriptor, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123


class Watch:
    """Context in which the first SIGINT, SIGTERM or SIGHUP sets *stop*, and the next calls *leave* with its number.

    Before `begin`, the first signal calls *leave*. A closed terminal may send SIGHUP more than once: a later SIGHUP
    is ignored.

    A thread of its own handles the signals: a handler in the main thread may run while that thread holds the lock
    of *stop*, which setting *stop* takes too. A process that a task function forks gets the handlers of before.
    """

    def __init__(
        self, worker: Worker, *, stop: Event, leave: Callable[[int], object], warn: Callable[[str], object] = warn
    ) -> None:
        self._worker = worker
        self._stop = stop
        self._leave = leave
        self._warn = warn
        self.has_begun = False
        self._lock = threading.Lock()
        self._mask = threading.local()
        self._error: TidemillError | None = None
        self._has_reported_unstarted = False
        self._numbers, self._wakeup = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="tidemill-watch", daemon=True)

    def __enter__(self) -> Self:
        self._numbers.settimeout(ERROR_POLL_SEC)
        self._wakeup.settimeout(0)  # signals lost to a full buffer only repeat earlier signals
        self._descriptor_before = signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        # Signals that the parent process ignored stay ignored, as for any job in the background.
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers_before = {number: signal.signal(number, _ignore_in_main_thread) for number in handled}
        os.register_at_fork(
            before=self._hold_signals, after_in_parent=self._release_signals, after_in_child=self._leave_signals
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leave_signals()
        self._wakeup.shutdown(socket.SHUT_RDWR)  # a forked process may have it open still
        self._wakeup.close()
        self._thread.join()
        self._numbers.close()

    def begin(self) -> None:
        """Let the first signal stop the worker from now on, instead of calling *leave*, which does not return.

        Task modules were imported before, and may have taken the signals.
        """
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in self._handlers_before:
            signal.signal(number, _ignore_in_main_thread)
        with self._lock:
            self.has_begun = True

    def _leave_signals(self) -> None:
        """Give the signals back, at the end and in a forked process; a second call does nothing."""
        if self._handlers_before:
            signal.set_wakeup_fd(self._descriptor_before)
        while self._handlers_before:
            signal.signal(*self._handlers_before.popitem())
        self._release_signals()

    def _hold_signals(self) -> None:
        """Block the signals while this thread forks: until the new process left them, it would tell this worker."""
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if self._handlers_before else None

    def _release_signals(self) -> None:
        before, self._mask.before = getattr(self._mask, "before", None), None
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _serve(self) -> None:
        while True:
            with suppress(TimeoutError):
                numbers = self._numbers.recv(_MAX_READ_BYTES)
                if not numbers:
                    self._report_unstarted()
                    return
                for number in numbers:
                    with self._lock:
                        self._handle(number)
            self._report_error()

    def _handle(self, number: int) -> None:
        if number not in SIGNALS:
            return
        if not self.has_begun:
            self._leave(number)
            return
        if self._stop.is_set():
            if number != signal.SIGHUP:
                self._leave(number)
            return
        self._stop.set()
        running = self._worker.running
        tasks = "1 task still runs" if running == 1 else f"{running} tasks still run"
        self._warn(f"stopping: {tasks}; a second signal exits at once" if running else "stopping")

    def _report_error(self) -> None:
        before, self._error = self._error, self._worker.error
        if self._error is None and before is not None:
            self._warn("working again")
        elif self._error is not None and type(self._error) is not type(before):
            self._warn(f"{self._error}; trying again")
        self._report_unstarted()

    def _report_unstarted(self) -> None:
        reason = self._worker.not_started
        if reason is not None and not self._has_reported_unstarted:
            self._has_reported_unstarted = True
            self._warn(f"a task did not start and is postponed: {reason}")


def _ignore_in_main_thread(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: Python writes the number of a signal to the wakeup socket only if the signal has a handler."""
