"""``tidemill ops``, and its topics ``task`` and ``stats``: tasks, their attempts, and statistics of retries.

Payloads and results are never shown.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, get_args

from tidemill.cli import queues, task_view
from tidemill.cli.operations import (
    Document,
    add_action,
    add_function_to,
    add_limit_to,
    call_operation,
    call_pages,
    print_json_if_asked,
)
from tidemill.cli.output import ABSENT, Commands, clean, format_facts, format_points, format_table, print_text
from tidemill.model import Status
from tidemill.text import format_duration

_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def _add_stats_to(topics: Commands) -> None:
    """Add ``stats``."""
    parser = add_action(topics, "stats", "show statistics of retries")
    parser.add_argument("--queue", metavar="QUEUE", help="only this queue")
    parser.add_argument(
        "--since", type=_parse_period, default="24h", metavar="TIME", help="last 30m, 6h or 7d; default: %(default)s"
    )
    parser.set_defaults(command=_show_stats)


def _parse_period(text: str) -> timedelta:
    period = re.fullmatch("([0-9]{1,4})([mhd])", text)
    if period is None or not int(period[1]):
        raise argparse.ArgumentTypeError("must be like 30m, 6h or 7d")
    return int(period[1]) * _UNITS[period[2]]


def _show_stats(arguments: argparse.Namespace) -> None:
    queue = {} if arguments.queue is None else {"queue": arguments.queue}
    answer = call_operation(arguments, {"op": "stats", "since_sec": arguments.since.total_seconds(), **queue})
    if print_json_if_asked(arguments, answer):
        return
    if not answer["statistics"]:
        of_queue = "" if arguments.queue is None else f"queue {clean(arguments.queue)} of "
        print_text(
            f"nothing was counted in {of_queue}{answer['database']} in the last {format_duration(arguments.since)}"
        )
    else:
        print_text(f"retries of the last {format_duration(arguments.since)}\n")
        print_text(_format_statistics(answer["statistics"]))


def _format_statistics(statistics: Sequence[Document]) -> str:
    return format_table(
        {
            "queue": "text",
            "retries": "number",
            "succeeded": "number",
            "exhausted": "number",
            "mean\nback-off": "number",
            "back-off\nin all": "number",
            "retry\nqueue": "number",
            "time saved\n(estimate)": "number",
        },
        [
            (
                queue["queue"],
                str(queue["total_retries"]),
                _format_successes(queue),
                str(queue["retries_exhausted"]),
                _format_seconds(queue["backoff_sec_mean"]),
                _format_seconds(queue["backoff_sec_sum"]),
                str(queue["retry_queue_size"]),
                _format_seconds(queue["time_saved_sec_estimate"]),
            )
            for queue in statistics
        ],
    )


def _format_successes(queue: Document) -> str:
    number, rate = queue["successful_retries"], queue["retry_success_rate"]
    return str(number) if rate is None else f"{number} ({rate:.1%})"


def _format_seconds(seconds: float | None) -> str:
    return ABSENT if seconds is None else format_duration(timedelta(seconds=seconds))


_ID: Final = "task id as `task ls` shows it, or as JSON; put an id that begins with - last, after --"


def _add_task_to(topics: Commands) -> None:
    """Add ``task`` with its sub-commands."""
    task = topics.add_parser("task", help="list, show, explain, retry and cancel tasks", allow_abbrev=False)
    actions = task.add_subparsers(required=True, metavar="ACTION")
    _add_list_to(actions)
    _add_task_action(actions, "show", "show the state of a task and its attempts").set_defaults(command=_show)
    _add_task_action(actions, "explain", "explain why a task is not running").set_defaults(command=_explain)
    _add_task_action(actions, "retry", "run a delayed or retrying task now").set_defaults(command=_retry)
    parser = _add_task_action(actions, "cancel", "cancel a task, or ask a running task to stop")
    parser.add_argument(
        "--force", action="store_true", help="cancel a running task at once; the result of its worker is refused"
    )
    parser.set_defaults(command=_cancel)


def _add_list_to(actions: Commands) -> None:
    parser = add_action(actions, "ls", "list tasks that are not dead letters, newest first")
    parser.add_argument(
        "--status", choices=get_args(Status), help="only this status; failed tasks soon become dead letters"
    )
    parser.add_argument("--queue", metavar="QUEUE", help="only this queue")
    parser.add_argument("--name", metavar="NAME", help="only this task function")
    add_limit_to(parser)
    parser.set_defaults(command=_list)


def _add_task_action(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary)
    parser.add_argument("id", metavar="ID", help=_ID)
    return parser


def _list(arguments: argparse.Namespace) -> None:
    options = {name: getattr(arguments, name) for name in ("status", "queue", "name")}
    event = {"op": "task.list", **{name: value for name, value in options.items() if value is not None}}
    answer = call_pages(arguments, event, "tasks")
    if print_json_if_asked(arguments, answer):
        return
    cursor = answer["next"]
    if answer["tasks"]:
        print_text(task_view.format_tasks(answer))
    elif cursor is None:
        is_filtered = any((arguments.status, arguments.queue, arguments.name))
        print_text(f"{'no task matches' if is_filtered else 'there are no tasks'} in {answer['database']}")
    if task_view.has_cut_id(answer):
        print_text("\nlong ids are cut: --json prints whole ids")
    if cursor is not None:
        state = "there are more" if answer["tasks"] else "no match so far"
        print_text(f"\n{state}: continue with the same options and --cursor {cursor}")


def _show(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "task.show", "id": arguments.id})
    if print_json_if_asked(arguments, answer):
        return
    log = answer["task"]["attempt_log"]
    print_text(format_facts(task_view.describe_task(answer)))
    print_text(f"\n{task_view.format_log(log)}" if log else "\nno attempt is logged")


def _explain(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "task.explain", "id": arguments.id})
    if print_json_if_asked(arguments, answer):
        return
    explanation = answer["explanation"]
    suffix = ", a dead letter" if explanation["is_dead_letter"] else ""
    print_text(f"task {clean(explanation['task_id'])} is {explanation['status']}{suffix}:\n")
    print_text(format_points([reason["message"] for reason in explanation["reasons"]]))


def _retry(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "task.retry", "id": arguments.id})
    if not print_json_if_asked(arguments, answer):
        print_text(task_view.describe_retry(answer))


def _cancel(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "task.cancel", "id": arguments.id, "force": arguments.force})
    if not print_json_if_asked(arguments, answer):
        print_text(task_view.describe_cancel(answer))


def add_to(commands: Commands) -> None:
    """Add ``ops`` with its topics."""
    ops = commands.add_parser("ops", help="inspect and operate queues and tasks", allow_abbrev=False)
    add_function_to(ops, default=None)
    topics = ops.add_subparsers(required=True, metavar="TOPIC")
    queues.add_to(topics)
    _add_task_to(topics)
    _add_stats_to(topics)
