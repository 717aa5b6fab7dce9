"""``tidemill work``: a worker, which is an executor in a process of its own that runs until it is stopped."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from pymongo.database import Database

from tidemill import indexes
from tidemill.bootstrap import deployment
from tidemill.cli.output import Commands, OutputError, flush, print_text
from tidemill.cli.signals import Watch, warn
from tidemill.control import queues, task_types
from tidemill.documents import TASKS
from tidemill.errors import MissingIndexError, SettingsError, UnavailableError
from tidemill.executor.execution import work
from tidemill.executor.lifetime import WORKER_LEASE, WORKER_REMAINING, Worker
from tidemill.executor.options import ExecutionOptions, Runtime
from tidemill.executor.report import Report
from tidemill.model import LANES, SELECTIONS
from tidemill.requests.tasks import QUEUE_PATTERN
from tidemill.settings import from_environment
from tidemill.store import counts
from tidemill.store.connection import open_tasks, translate_errors
from tidemill.text import did_you_mean

_SIGNAL_STATUS_BASE: Final = 128
"""Added to the number of a signal it gives the exit status, as in a shell."""


def add_to(commands: Commands) -> None:
    """Add ``work``."""
    parser = commands.add_parser("work", help="run due tasks until stopped", allow_abbrev=False)
    parser.add_argument(
        "--queue",
        action="append",
        dest="queues",
        default=[],
        type=_parse_queue,
        metavar="NAME",
        help="serve this queue; may be repeated; default: all queues",
    )
    parser.add_argument("--lane", choices=LANES, help="serve only this lane")
    parser.add_argument("--selection", choices=SELECTIONS, help="order in which the lanes are served")
    parser.add_argument(
        "--concurrency",
        type=_parse_as_setting("CONCURRENCY", "concurrency"),
        metavar="N",
        help="number of tasks that run at once; default: CONCURRENCY, or 16",
    )
    parser.add_argument(
        "--batch-size",
        type=_parse_as_setting("BATCH_SIZE", "batch_size"),
        metavar="N",
        help="maximum number of tasks of one claim; default: BATCH_SIZE, or 100",
    )
    parser.add_argument(
        "--tasks",
        type=_parse_package,
        metavar="PACKAGE",
        help="package of task modules, also found in the current directory; default: TASK_PACKAGE, or tasks",
    )
    parser.add_argument("--until-empty", action="store_true", help="exit when no task is due")
    parser.set_defaults(command=_work)


def _parse_queue(text: str) -> str:
    if not re.fullmatch(QUEUE_PATTERN, text):
        raise argparse.ArgumentTypeError("use up to 63 letters, digits, _ . and -")
    return text


def _parse_package(text: str) -> str:
    package: str = _parse_as_setting("TASK_PACKAGE", "task_package")(text or "-")
    return package


def _parse_as_setting(name: str, field: str) -> Callable[[str], Any]:
    """Return a parser of an option with the rules of the setting *name*."""

    def parse(text: str) -> Any:  # noqa: ANN401 - a setting is of any type
        try:
            return getattr(from_environment({name: text}), field)
        except SettingsError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{name} ")) from None

    return parse


def _work(arguments: argparse.Namespace) -> None:
    threads = threading.enumerate()
    if sys.stdout is None:
        _discard_stdout()  # otherwise a connection gets the descriptor that is stdout in every child
    stop = threading.Event()
    worker = Worker(stop, stays=not arguments.until_empty)
    with Watch(worker, stop=stop, leave=lambda number: _exit_at_once(number, has_begun=watch.has_begun)) as watch:
        sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
        package = deployment().settings.task_package if arguments.tasks is None else arguments.tasks
        runtime = deployment().make_worker_runtime(package)
        _check_database(runtime.tasks.database, arguments.queues)
        options = _build_options(arguments)
        watch.begin()
        try:
            _print(_describe_start(runtime, options, package=package))
            report = work(runtime, options, worker)
        finally:
            if runtime.isolation is not None:
                runtime.isolation.close()
    _print(_describe_end(report))
    runtime.tasks.database.client.close()
    _leave(report, threads)


def _build_options(arguments: argparse.Namespace) -> ExecutionOptions:
    return ExecutionOptions(
        owner=f"work-{_read_host_name()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        remaining=WORKER_REMAINING,
        queues=tuple(dict.fromkeys(arguments.queues)),
        lanes=LANES if arguments.lane is None else (arguments.lane,),
        selection=arguments.selection,
        concurrency=arguments.concurrency,
        batch_size=arguments.batch_size,
    )


def _check_database(db: Database[Any], queues: Sequence[str]) -> None:
    _require_indexes(db)
    for queue in queues:
        _warn_if_unknown(db, queue)


def _require_indexes(db: Database[Any]) -> None:
    with translate_errors():
        missing = indexes.find_missing(db)
    if any(index.collection == TASKS and not index.expires for index in missing):
        raise MissingIndexError(TASKS)


def _warn_if_unknown(db: Database[Any], queue: str) -> None:
    known = {task_types.DEFAULT_QUEUE, *queues.list_configured_queues(db)}
    tasks = open_tasks(db)
    if queue in known or counts.count_pending(tasks, queue, limit=1) or counts.count_processing(tasks, queue, limit=1):
        return
    hint = did_you_mean(queue, known) or ";"
    warn(f"warning: queue {queue} is not declared and has no tasks{hint} serving it anyway")


def _read_host_name() -> str:
    """Return the name of this machine with letters, digits and - only, for the name of the owner."""
    return re.sub("[^A-Za-z0-9-]", "-", platform.node().partition(".")[0])[:40] or "somewhere"


def _describe_start(runtime: Runtime, options: ExecutionOptions, *, package: str) -> str:
    queues = _join_queues(options.queues) if options.queues else "all queues"
    lanes = "" if options.lanes == LANES else f", lane {options.lanes[0]}"
    functions = len(runtime.registry)
    prefix = f", collections {runtime.settings.prefix}*" if runtime.settings.prefix else ""
    release = f", release {runtime.settings.release}" if runtime.settings.release else ""
    return (
        f"{options.owner} serves {queues} of {runtime.tasks.database.name}{prefix}{lanes}: "
        f"up to {options.concurrency or runtime.settings.concurrency} tasks at once, "
        f"{functions} {'function' if functions == 1 else 'functions'} of {package}{release}"
    )


def _join_queues(queues: Sequence[str]) -> str:
    return f"queue {queues[0]}" if len(queues) == 1 else f"queues {', '.join(queues)}"


def _describe_end(report: Report) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in report.as_dict().items() if count)
    return f"stopped: {counts}" if counts else "stopped: there was nothing to do"


def _print(line: str) -> None:
    try:
        print_text(line)
        flush()
    except OutputError:
        _discard_stdout()


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
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1 if unconfirmed or report.spent else 0)
    if unconfirmed:
        raise UnavailableError(unconfirmed)


def _exit_at_once(number: int, *, has_begun: bool) -> NoReturn:
    if not has_begun:
        warn("stopped before the worker started")
        os._exit(0)
    # Isolated functions end with this process. If they ended earlier, they would be settled as crashed.
    warn(f"exited at once: reclaim returns the running tasks within {WORKER_LEASE.total_seconds():g} s")
    os._exit(_SIGNAL_STATUS_BASE + number)
