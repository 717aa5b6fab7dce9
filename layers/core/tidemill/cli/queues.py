"""``tidemill ops queue`` and ``tidemill ops stats``: queues, their options, and statistics of retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import click
from click import argument, option

from tidemill.admin import responses
from tidemill.cli.commands import Group, Operation, parse_duration
from tidemill.cli.operations import Event, call_pages, print_answer, print_json_if_asked
from tidemill.cli.output import ABSENT, clean, format_facts, format_table, print_text
from tidemill.control.queues import OPTIONS_CACHE_SEC
from tidemill.control.task_types import DEFAULT_QUEUE
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import SELECTIONS, QueueOptions
from tidemill.text import format_duration, format_time, name_attempt

DEPLOYMENT: Final = "deployment"
NONE: Final = "none"

_PAUSED: Final = "is paused: it takes new tasks and starts none"
_SOON: Final = f"running executors see it within {OPTIONS_CACHE_SEC:g} s"
_SIZES: Final = ("fresh", "retry", "delayed", "processing", "failed", "oldest due")

queue: Final = Group("queue", "List, show, declare, pause, resume and configure queues.")
_queue_argument: Final = argument("name", metavar="QUEUE")


@queue.command("ls", example="tidemill ops queue ls")
def _list() -> None:
    """List all queues with their sizes."""
    page = call_pages({"op": "queue.list"}, responses.QueuePage)
    if print_json_if_asked(page):
        return
    print_text(
        format_table(
            {"queue": "text", **dict.fromkeys(_SIZES, "number"), "state": "word"},
            [(view.queue, *_format_sizes(view), _format_state(view)) for view in page.queues],
        )
    )


@queue.command(
    "declare",
    note="QUEUE is a name of up to 63 letters, digits, _ . and -.",
    example="tidemill ops queue declare reports",
)
@_queue_argument
def _declare(*, name: str) -> None:
    """Allow HTTP requests to enqueue into a queue."""
    event = {"op": "queue.declare", "queue": name}
    print_answer(event, responses.QueueChangeResponse, lambda response: f"{_format_queue(response)} is declared")


@queue.command("status", example="tidemill ops queue status reports")
@argument("name", metavar="[QUEUE]", default=DEFAULT_QUEUE)
def _show(*, name: str) -> None:
    """Show the sizes, the running tasks and the options of a queue."""
    print_answer({"op": "queue.status", "queue": name}, responses.QueueResponse, _describe_status)


def _describe_status(response: responses.QueueResponse) -> str:
    view = response.queue
    blocks = [_describe_state(response), format_table(dict.fromkeys(_SIZES, "number"), [_format_sizes(view)])]
    if view.current:
        blocks += [f"running ({len(view.current)} of {view.processing}):", _format_running(view.current)]
    if own := describe_own_options(view.options):
        blocks += ["its own options:", format_facts(own)]
    return "\n\n".join(blocks)


@queue.command("pause", example="tidemill ops queue pause eu")
@_queue_argument
def _pause(*, name: str) -> None:
    """Stop starting tasks of a queue; it still takes new tasks."""
    _print_change({"op": "queue.pause", "queue": name})


@queue.command("resume", example="tidemill ops queue resume eu")
@_queue_argument
def _resume(*, name: str) -> None:
    """Start the tasks of a paused queue again."""
    _print_change({"op": "queue.resume", "queue": name})


def _print_change(event: Event) -> None:
    print_answer(event, responses.QueueChangeResponse, lambda response: f"{_describe_state(response)} ({_SOON})")


def _parse_number_or(word: str, kind: Callable[[str], float], kind_name: str) -> Callable[[str], float | str]:
    """Return a parser of a number or *word*."""

    def parse(text: str) -> float | str:
        try:
            return word if text == word else kind(text)
        except ValueError:
            raise click.BadParameter(f"must be {kind_name} or the word {word}") from None

    return parse


_SHARE: Final = _parse_number_or(DEPLOYMENT, float, "a number")
_CAP: Final = _parse_number_or(NONE, int, "a whole number")
_SWITCH: Final = click.Choice(["on", "off"])


@queue.command("set", example="tidemill ops queue set eu --retry-share 0.25 --budget on")
@_queue_argument
@option(
    "--selection",
    type=click.Choice([*SELECTIONS, DEPLOYMENT]),
    metavar="ORDER",
    help=f"Order in which the lanes are served: {', '.join(SELECTIONS)} or deployment.",
)
@option("--retry-share", type=_SHARE, metavar="X", help="Share of the slots for retries, 0 to 1, or deployment.")
@option(
    "--max-in-flight-retries",
    type=_CAP,
    metavar="N",
    help="Maximum number of retries that run at once; 0 pauses retries, the word none removes the limit.",
)
@option("--adaptive", type=_SWITCH, metavar="on|off", help="Lengthen retry delays while many tasks are due.")
@option("--adaptive-scale", type=int, metavar="N", help="Multiply delays by 1 + due tasks / N; turns adaptive on.")
@option(
    "--adaptive-cap",
    "adaptive_max_sec",
    type=float,
    metavar="SEC",
    help="Maximum of a lengthened delay; turns adaptive on.",
)
@option("--budget", type=_SWITCH, metavar="on|off", help="Lengthen retry delays after many retries in a minute.")
@option(
    "--budget-per-minute",
    type=int,
    metavar="N",
    help="Retries in a minute before delays are lengthened; turns budget on.",
)
@option("--budget-factor", type=float, metavar="X", help="Factor of lengthened delays; turns budget on.")
def _set(*, name: str, **options: Any) -> None:  # noqa: ANN401 - values of several types
    """Change the options of a queue."""
    given = {field: value for field, value in options.items() if value is not None}
    if not given:
        raise click.UsageError("nothing to change: give at least one option")
    try:
        print_answer(
            {"op": "queue.set", "queue": name, **build_changes(given)}, responses.QueueChangeResponse, _describe_change
        )
    except InvalidRequestError as error:
        problems = [Problem(_name_option(problem.field), problem.message) for problem in error.problems]
        raise InvalidRequestError(problems) from None


def _describe_change(response: responses.QueueChangeResponse) -> str:
    options = format_facts(describe_options(response.queue.options))
    return f"{_format_queue(response)} now has ({_SOON}):\n\n{options}"


def build_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the operation ``queue.set`` for the options *given*.

    Raises:
        InvalidRequestError: The options contradict each other.
    """
    plain = {name: given[name] for name in ("selection", "retry_share", "max_in_flight_retries") if name in given}
    cleared = {name: None if value in (DEPLOYMENT, NONE) else value for name, value in plain.items()}
    return cleared | _group_numbers("adaptive", given) | _group_numbers("budget", given)


def _group_numbers(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {field.removeprefix(f"{name}_"): value for field, value in given.items() if field.startswith(f"{name}_")}
    if given.get(name) == "off":
        if numbers:
            raise InvalidRequestError([Problem(name, "off cannot be combined with numbers")])
        return {name: None}
    return {name: numbers} if numbers or name in given else {}


def _name_option(field: str) -> str:
    """Return the option of the command line for *field* of an operation."""
    option = field.replace("max_sec", "cap").replace(".", "-").replace("_", "-")
    return field if field == "queue" else f"--{option}"


def describe_own_options(options: QueueOptions) -> dict[str, str]:
    """Describe the *options* that a queue sets itself, without those left to the deployment or off."""
    adaptive, budget = options.pressure.adaptive, options.pressure.budget
    words: dict[str, str] = {}
    if options.selection is not None:
        words["selection"] = options.selection
    if options.retry_share is not None:
        words["retry share"] = f"{options.retry_share:g}"
    if options.max_in_flight_retries is not None:
        words["retries in flight"] = _format_cap(options.max_in_flight_retries)
    if adaptive is not None:
        words["adaptive back-off"] = f"delay x (1 + due tasks / {adaptive.scale}), up to {adaptive.max_sec:g} s"
    if budget is not None:
        words["retry budget"] = f"delay x {budget.factor:g} after {budget.per_minute} retries in a minute"
    return words


def _format_cap(cap: int) -> str:
    return f"at most {cap}" if cap else "0: retries are paused"


def describe_options(options: QueueOptions) -> dict[str, str]:
    """Describe all *options* of a queue."""
    defaults = {
        "selection": "the deployment's",
        "retry share": "the deployment's",
        "retries in flight": "any number",
        "adaptive back-off": "off",
        "retry budget": "off",
    }
    return defaults | describe_own_options(options) | {"paused": "yes" if options.paused else "no"}


def _format_queue(response: responses.QueueResponse | responses.QueueChangeResponse) -> str:
    return f"queue {clean(response.queue.queue)} of {response.database}"


def _describe_state(response: responses.QueueResponse | responses.QueueChangeResponse) -> str:
    view = response.queue
    state = "is open, but its retries are paused" if view.options.has_paused_retries else "is open"
    return f"{_format_queue(response)} {_PAUSED if view.paused else state}"


def _format_state(view: responses.QueueView) -> str:
    if view.paused:
        return "paused"
    return "retries paused" if view.options.has_paused_retries else "open"


def _format_sizes(view: responses.QueueView) -> tuple[str, ...]:
    sizes = (view.queue_size, view.retry_queue_size, view.delayed, view.processing, view.failed)
    return (*map(str, sizes), _format_seconds(view.oldest_due_age_sec))


def _format_running(tasks: tuple[responses.RunningTask, ...]) -> str:
    return format_table(
        {"task": "word", "name": "text", "attempt": "word", "lane": "word", "since (UTC)": "word"},
        [
            (
                task.id,
                task.name,
                name_attempt(task.attempts),
                "retry" if task.is_retry else "fresh",
                format_time(task.since),
            )
            for task in tasks
        ],
    )


@click.command("stats", cls=Operation, example="tidemill ops stats --queue eu --since 6h")
@option("--queue", "name", metavar="QUEUE", help="Only this queue.")
@option("--since", type=parse_duration, default="24h", metavar="TIME", help="The last 30m, 6h or 7d. Default: 24h.")
def stats(*, name: str | None, since: timedelta) -> None:
    """Show statistics of retries."""
    event = {"op": "stats", "since_sec": since.total_seconds()} | ({} if name is None else {"queue": name})
    print_answer(
        event, responses.StatisticsResponse, partial(_describe_statistics, queue=name, since=format_duration(since))
    )


def _describe_statistics(response: responses.StatisticsResponse, *, queue: str | None, since: str) -> str:
    if not response.statistics:
        of_queue = "" if queue is None else f"queue {clean(queue)} of "
        return f"nothing was counted in {of_queue}{response.database} in the last {since}"
    numbers = (
        "retries", "succeeded", "exhausted", "mean\nback-off", "back-off\nin all", "retry\nqueue",
        "time saved\n(estimate)",
    )  # fmt: skip
    table = format_table(
        {"queue": "text", **dict.fromkeys(numbers, "number")}, map(_format_statistics, response.statistics)
    )
    return f"retries of the last {since}\n\n{table}"


def _format_statistics(row: responses.QueueStatistics) -> tuple[str, ...]:
    return (
        row.queue,
        str(row.total_retries),
        _format_successes(row),
        str(row.retries_exhausted),
        _format_seconds(row.backoff_sec_mean),
        _format_seconds(row.backoff_sec_sum),
        str(row.retry_queue_size),
        _format_seconds(row.time_saved_sec_estimate),
    )


def _format_successes(row: responses.QueueStatistics) -> str:
    rate = row.retry_success_rate
    return str(row.successful_retries) if rate is None else f"{row.successful_retries} ({rate:.1%})"


def _format_seconds(seconds: float | None) -> str:
    return ABSENT if seconds is None else format_duration(timedelta(seconds=seconds))
