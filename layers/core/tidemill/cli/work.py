"""``tidemill work``: a worker, which is an executor in a process of its own that runs until it is stopped."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import uuid
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click import option
from pymongo.database import Database

from tidemill import indexes
from tidemill.bootstrap import deployment
from tidemill.cli.commands import Command, parse_setting, parse_text, parse_whole
from tidemill.cli.output import warn
from tidemill.cli.work_health import Health, HealthServer
from tidemill.cli.work_log import OwnStreams, WorkerLog, discard_stdout
from tidemill.cli.work_watch import Watch
from tidemill.control import queues, task_types
from tidemill.documents import TASKS
from tidemill.errors import MissingIndexError, UnavailableError
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import work as run_worker
from tidemill.executor.lifetime import WORKER_LEASE, WORKER_REMAINING, Worker
from tidemill.executor.maintenance import Maintenance, MaintenanceContext
from tidemill.model import LANES, SELECTIONS, Lane, Selection, Task
from tidemill.requests.tasks import QUEUE_PATTERN
from tidemill.runner.output import log_as_json
from tidemill.runner.resources import close_process_resources
from tidemill.store import counts
from tidemill.store.connection import open_tasks, translate_errors
from tidemill.store.settle import Settlement
from tidemill.text import did_you_mean

_UNUSED_INDEXES: Final = frozenset({indexes.KEY, indexes.FAILED})
"""Indexes of tasks that a worker does not need."""

_WITHOUT_THEM: Final = "enqueues with an idempotency key or the archive may fail"

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
    "--isolated-concurrency",
    type=parse_setting("ISOLATED_CONCURRENCY", lambda settings: settings.isolated_concurrency),
    metavar="N",
    help="Number of tasks with isolate=True that run at once. Default: ISOLATED_CONCURRENCY, or the cores.",
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
@option(
    "--no-maintenance",
    is_flag=True,
    help="Leave it to the functions reclaim and archive to recover lost tasks and to move failed ones.",
)
@option(
    "--own-database",
    is_flag=True,
    help="Do all that reclaim and archive do, by the settings of this process: no deployment uses the database.",
)
@option(
    "--health-port",
    type=parse_whole(0, 65535),
    metavar="N",
    help="Answer GET /healthz on this port: 200 while the worker claims and MongoDB answers, else 503. 0: any port.",
)
@option(
    "--health-address",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address of that port. Default: 127.0.0.1, which no other machine reaches.",
)
@option("--verbose", is_flag=True, help="Print the traceback of each failed attempt.")
@option("--json-logs", is_flag=True, help="Print lines of JSON on stdout, as the function execute does.")
def work(**choices: Any) -> None:  # noqa: ANN401 - of `_Choices`
    """Run a worker until a signal stops it, or until no task is due."""
    _work(_Choices(**choices))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """The options of the command."""

    queues: tuple[str, ...]
    lane: Lane | None
    selection: Selection | None
    concurrency: int | None
    isolated_concurrency: int | None
    batch_size: int | None
    package: str | None
    until_empty: bool
    no_maintenance: bool
    own_database: bool
    health_port: int | None
    health_address: str
    verbose: bool
    json_logs: bool

    def __post_init__(self) -> None:
        if self.no_maintenance and self.own_database:
            problem = "--no-maintenance and --own-database exclude each other: leave one of them out"
            raise click.UsageError(problem, ctx=click.get_current_context())


def _work(choices: _Choices) -> None:
    threads = threading.enumerate()
    if sys.stdout is None:
        discard_stdout()  # otherwise a connection gets the descriptor that is stdout in every child
    stop = threading.Event()
    worker = Worker(stop, stays=not choices.until_empty)
    with (
        OwnStreams() as streams,
        WorkerLog(streams, as_json=choices.json_logs, verbose=choices.verbose) as lines,
        Watch(
            worker,
            stop=stop,
            leave=lambda number: _exit_at_once(number, lines, has_begun=watch.has_begun),
            warn=lines.warn,
        ) as watch,
    ):
        runtime, options = _prepare(choices, lines)
        maintenance = None if choices.no_maintenance else _make_maintenance(options, runtime, choices)
        health = _make_health_server(choices, Health(worker, runtime.tasks.database, is_stopping=stop.is_set))
        watch.begin(maintenance)
        try:
            sentence, fields = _describe_start(runtime, options, choices), _list_start_fields(runtime, options)
            lines.inform("started", sentence, **fields)
            if health is not None:
                lines.inform("health", f"health checks at {health.url}", url=health.url)
            with maintenance or nullcontext(), health or nullcontext():
                report = run_worker(runtime, options, worker)
        finally:
            if runtime.isolation is not None:
                runtime.isolation.close()
            close_process_resources()
        lines.inform("executed", _describe_end(report), owner=options.owner, **report.as_dict())
    deployment().reset()
    leave(report, threads)


def _prepare(choices: _Choices, lines: WorkerLog) -> tuple[Runtime, ExecutionOptions]:
    """Return the runtime and the options of the worker; warn about what it lacks.

    Raises:
        TidemillError: It cannot work: settings, task modules, MongoDB or indexes are not as they must be.
    """
    if choices.json_logs:
        log_as_json()
    sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
    package = choices.package or deployment().settings.task_package
    made = deployment().make_worker_runtime(package, logs_json=choices.json_logs)

    def count_tries(task: Task) -> int:
        return made.policy(task).max_retries + 1

    def observe(settlement: Settlement) -> None:
        lines.report_attempt(settlement, now=made.clock.now(), count_tries=count_tries)

    runtime = replace(made, observe=observe, keeps_tracebacks=choices.verbose)
    options = _build_options(choices)
    db = runtime.tasks.database
    if choices.own_database:
        for problem in deployment().create_missing_indexes("maintenance"):
            lines.warn(f"warning: an index was not created or changed: {problem}")
    warning = require_indexes(db)
    if warning is not None:
        lines.warn(warning)
    for queue in options.queues:
        _warn_if_unknown(db, queue, lines)
    for fault in runtime.faults:
        lines.warn(f"warning: {fault}; its tasks wait for a release without the fault")
    return runtime, options


def _build_options(choices: _Choices) -> ExecutionOptions:
    return ExecutionOptions(
        owner=f"work-{_read_host_name()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        remaining=WORKER_REMAINING,
        queues=tuple(dict.fromkeys(choices.queues)),
        lanes=LANES if choices.lane is None else (choices.lane,),
        selection=choices.selection,
        concurrency=choices.concurrency,
        isolated_concurrency=choices.isolated_concurrency,
        batch_size=choices.batch_size,
    )


def _make_maintenance(options: ExecutionOptions, runtime: Runtime, choices: _Choices) -> Maintenance:
    reclaim_context = deployment().make_reclaim_context("maintenance")
    return Maintenance(
        MaintenanceContext(
            owner=options.owner,
            reclaim=replace(reclaim_context, observe=runtime.observe),
            archive=deployment().make_archive_context("maintenance", put=None),
            owns_database=choices.own_database,
        )
    )


def _make_health_server(choices: _Choices, health: Health) -> HealthServer | None:
    if choices.health_port is None:
        return None
    return HealthServer(choices.health_address, choices.health_port, health.find_problem)


def require_indexes(db: Database[Any]) -> str | None:
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


def _warn_if_unknown(db: Database[Any], queue: str, lines: WorkerLog) -> None:
    known = {task_types.DEFAULT_QUEUE, *queues.list_configured_queues(db)}
    tasks = open_tasks(db)
    if queue in known or counts.count_pending(tasks, queue, limit=1) or counts.count_processing(tasks, queue, limit=1):
        return
    hint = did_you_mean(queue, known) or ";"
    lines.warn(f"warning: queue {queue} is not declared and has no tasks{hint} serving it anyway")


def _read_host_name() -> str:
    """Return the name of this machine with letters, digits and - only, for the name of the owner."""
    return re.sub("[^A-Za-z0-9-]", "-", platform.node().partition(".")[0])[:40] or "somewhere"


def _describe_start(runtime: Runtime, options: ExecutionOptions, choices: _Choices) -> str:
    queues = "all queues"
    if options.queues:
        queues = f"{'queue' if len(options.queues) == 1 else 'queues'} {', '.join(options.queues)}"
    lanes = "" if options.lanes == LANES else f", lane {options.lanes[0]}"
    functions = len(runtime.registry)
    prefix = f", collections {runtime.settings.prefix}*" if runtime.settings.prefix else ""
    release = f", release {runtime.settings.release}" if runtime.settings.release else ""
    package = choices.package or runtime.settings.task_package
    return (
        f"{options.owner} serves {queues} of {runtime.tasks.database.name}{prefix}{lanes}: "
        f"up to {options.concurrency or runtime.settings.concurrency} tasks at once, "
        f"{functions} {'function' if functions == 1 else 'functions'} of {package}{release}"
    )


def _list_start_fields(runtime: Runtime, options: ExecutionOptions) -> dict[str, object]:
    """Return the same for a line of JSON."""
    return {
        "owner": options.owner,
        "database": runtime.tasks.database.name,
        "queues": options.queues,
        "lanes": options.lanes,
        "concurrency": options.concurrency or runtime.settings.concurrency,
        "functions": len(runtime.registry),
        "release": runtime.settings.release,
    }


def _describe_end(report: Report) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in report.as_dict().items() if count)
    return f"stopped: {counts}" if counts else "stopped: there was nothing to do"


def leave(report: Report, threads: Sequence[threading.Thread]) -> None:
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


def _exit_at_once(number: int, lines: WorkerLog, *, has_begun: bool) -> NoReturn:
    if not has_begun:
        lines.warn("stopped before the worker started")
        os._exit(0)
    # Isolated functions end with this process. If they ended earlier, they would be settled as crashed.
    lines.warn(f"exited at once: reclaim returns the running tasks within {WORKER_LEASE.total_seconds():g} s")
    os._exit(_SIGNAL_STATUS_BASE + number)
