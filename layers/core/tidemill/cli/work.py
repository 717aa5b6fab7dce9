"""``tidemill work``: the executor as a process that stays, on a machine of one's own."""

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

from tidemill import bootstrap, control, indexes
from tidemill.cli.tables import Commands, OutputError, flush, say
from tidemill.cli.watch import Watch, complain
from tidemill.documents import TASKS
from tidemill.errors import MissingIndexError, SettingsError, UnavailableError
from tidemill.executor import Order, Report, Runtime, Worker, work
from tidemill.executor.life import FOREVER, WORKER_LEASE
from tidemill.model import LANES
from tidemill.policies import SELECTIONS
from tidemill.requests import QUEUE_PATTERN
from tidemill.settings import from_environment
from tidemill.store import gauges, open_tasks, translated
from tidemill.wording import guess

_SIGNALLED: Final = 128
"""A shell adds it to the number of a signal."""


def add_to(commands: Commands) -> None:
    """Add ``work``."""
    working = commands.add_parser("work", help="run tasks as they become due, until it is stopped", allow_abbrev=False)
    working.add_argument(
        "--queue",
        action="append",
        dest="queues",
        default=[],
        type=_queue,
        metavar="NAME",
        help="serve this queue; repeat it for more; without it: all queues",
    )
    working.add_argument("--lane", choices=LANES, help="serve one lane only")
    working.add_argument("--selection", choices=SELECTIONS, help="which lane is served first")
    working.add_argument(
        "--concurrency",
        type=_as_set("CONCURRENCY", "concurrency"),
        metavar="N",
        help="how many tasks run at once; default: CONCURRENCY, or 16",
    )
    working.add_argument(
        "--batch-size",
        type=_as_set("BATCH_SIZE", "batch_size"),
        metavar="N",
        help="how many tasks are claimed at once; default: BATCH_SIZE, or 100",
    )
    working.add_argument(
        "--tasks",
        type=_package,
        metavar="PACKAGE",
        help="the package whose modules register task functions, found from here; default: TASK_PACKAGE, or tasks",
    )
    working.add_argument("--until-empty", action="store_true", help="leave once nothing is due")
    working.set_defaults(command=_work)


def _queue(text: str) -> str:
    if not re.fullmatch(QUEUE_PATTERN, text):
        raise argparse.ArgumentTypeError("use up to 63 letters, digits, _ . and -")
    return text


def _package(text: str) -> str:
    package: str = _as_set("TASK_PACKAGE", "task_package")(text or "-")
    return package


def _as_set(name: str, field: str) -> Callable[[str], Any]:
    """Return what reads an option as the setting *name* is read."""

    def value(text: str) -> Any:  # noqa: ANN401 - a setting is of any type
        try:
            return getattr(from_environment({name: text}), field)
        except SettingsError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{name} ")) from None

    return value


def _work(chosen: argparse.Namespace) -> None:
    threads = threading.enumerate()
    if sys.stdout is None:
        _say_no_more()  # or a connection gets the descriptor that is stdout to every child
    stop = threading.Event()
    worker = Worker(stop, stays=not chosen.until_empty)
    with Watch(worker, stop=stop, leave=lambda number: _leave_at_once(number, begun=watch.has_begun)) as watch:
        sys.path.insert(0, str(Path.cwd()))  # where ``python -m`` looks, too
        package = bootstrap.chosen().task_package if chosen.tasks is None else chosen.tasks
        runtime = bootstrap.worker_runtime(package)
        _look_ahead(runtime.tasks.database, chosen.queues)
        order = _order(chosen)
        watch.begin()
        try:
            _speak(_beginning(runtime, order, package=package))
            report = work(runtime, order, worker)
        finally:
            if runtime.isolation is not None:
                runtime.isolation.close()
    _speak(_ending(report))
    runtime.tasks.database.client.close()
    _leave(report, threads)


def _order(chosen: argparse.Namespace) -> Order:
    return Order(
        owner=f"work-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        remaining=FOREVER,
        queues=tuple(dict.fromkeys(chosen.queues)),
        lanes=LANES if chosen.lane is None else (chosen.lane,),
        selection=chosen.selection,
        concurrency=chosen.concurrency,
        batch_size=chosen.batch_size,
    )


def _look_ahead(db: Database[Any], queues: Sequence[str]) -> None:
    _require_indexes(db)
    for queue in queues:
        _warn_of_a_typo(db, queue)


def _require_indexes(db: Database[Any]) -> None:
    with translated():
        lacking = indexes.missing(db)
    if any(one.collection == TASKS and not one.expires for one in lacking):
        raise MissingIndexError(TASKS)


def _warn_of_a_typo(db: Database[Any], queue: str) -> None:
    known = {control.DEFAULT_QUEUE, *control.listed_queues(db)}
    tasks = open_tasks(db)
    if queue in known or gauges.pending(tasks, queue, limit=1) or gauges.processing(tasks, queue, limit=1):
        return
    meant = guess(queue, known)
    complain(f"queue {queue} is not declared and holds no tasks{meant or ';'} it is served all the same")


def _host() -> str:
    """Return the name of this machine as far as it can be part of another one."""
    return re.sub("[^A-Za-z0-9-]", "-", platform.node().partition(".")[0])[:40] or "somewhere"


def _beginning(runtime: Runtime, order: Order, *, package: str) -> str:
    queues = _listed(order.queues) if order.queues else "all queues"
    lanes = "" if order.lanes == LANES else f", lane {order.lanes[0]}"
    functions = len(runtime.registry)
    release = f", release {runtime.settings.release}" if runtime.settings.release else ""
    return (
        f"{order.owner} serves {queues} of {runtime.tasks.database.name}{lanes}: "
        f"up to {order.concurrency or runtime.settings.concurrency} tasks at once, "
        f"{functions} {'function' if functions == 1 else 'functions'} of {package}{release}"
    )


def _listed(queues: Sequence[str]) -> str:
    return f"queue {queues[0]}" if len(queues) == 1 else f"queues {', '.join(queues)}"


def _ending(report: Report) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in report.as_dict().items() if count)
    return f"stopped: {counts}" if counts else "stopped: there was nothing to do"


def _speak(line: str) -> None:
    try:
        say(line)
        flush()
    except OutputError:
        _say_no_more()


def _say_no_more() -> None:
    """Let what is printed from now on, by task functions too, go nowhere."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it is open until the end


def _leave(report: Report, threads: Sequence[threading.Thread]) -> None:
    """Leave, here and now where something that a function left running would keep the process, or disturb its end.

    Raises:
        UnavailableError: The outcomes of some tasks could not be written.
    """
    unsure = f"MongoDB did not confirm the outcome of {report['unknown']} tasks" if report["unknown"] else ""
    if report.spent:
        complain("this process has no threads left for functions: start another one")
    if (
        report.spent
        or report["leftovers"]
        or any(not one.daemon for one in threading.enumerate() if one not in threads)
    ):
        if unsure:
            complain(unsure)
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1 if unsure or report.spent else 0)
    if unsure:
        raise UnavailableError(unsure)


def _leave_at_once(number: int, *, begun: bool) -> NoReturn:
    if not begun:
        complain("stopped before it began")
        os._exit(0)
    # Isolated functions end with this process. Ended before, they would be settled as if they had crashed.
    complain(f"left at once: what still ran comes back within {WORKER_LEASE.total_seconds():g} s, by reclaim")
    os._exit(_SIGNALLED + number)
