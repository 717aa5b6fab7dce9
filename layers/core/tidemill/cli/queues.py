"""``tidemill ops queue``: list, show, declare, pause, resume and configure queues."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from tidemill.cli.operations import Document, add_action, call_all_pages, call_operation, print_json_if_asked
from tidemill.cli.output import ABSENT, Commands, clean, format_facts, format_table, print_text
from tidemill.control.queues import OPTIONS_CACHE_SEC
from tidemill.control.task_types import DEFAULT_QUEUE
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import SELECTIONS
from tidemill.text import format_duration, format_time

DEPLOYMENT: Final = "deployment"
NONE: Final = "none"

_FLAGS: Final = {
    "selection": "--selection",
    "retry_share": "--retry-share",
    "max_in_flight_retries": "--max-in-flight-retries",
    "adaptive": "--adaptive",
    "adaptive.scale": "--adaptive-scale",
    "adaptive.max_sec": "--adaptive-cap",
    "budget": "--budget",
    "budget.per_minute": "--budget-per-minute",
    "budget.factor": "--budget-factor",
}
"""The option of the command line for each field of the operation."""

_DEFAULTS: Final = {
    "selection": "the deployment's",
    "retry share": "the deployment's",
    "retries in flight": "any number",
    "adaptive back-off": "off",
    "retry budget": "off",
}


def add_options_to(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field; an option that is not given is absent from the parsed arguments."""

    def add(field: str, summary: str, **keywords: Any) -> None:  # noqa: ANN401 - keywords of add_argument
        parser.add_argument(_FLAGS[field], dest=field, help=summary, default=argparse.SUPPRESS, **keywords)

    on_off = ("on", "off")
    share = _parse_number_or(DEPLOYMENT, float, kind_name="a number")
    cap = _parse_number_or(NONE, int, kind_name="a whole number")
    add("selection", "order in which the lanes are served", choices=(*SELECTIONS, DEPLOYMENT))
    add("retry_share", "share of the slots for retries, 0 to 1, or deployment", type=share, metavar="X")
    add(
        "max_in_flight_retries",
        "maximum number of retries that run at once, or none for no limit",
        type=cap,
        metavar="N",
    )
    add("adaptive", "lengthen retry delays while many tasks are due", choices=on_off)
    add("adaptive.scale", "multiply delays by 1 + due tasks / N; turns adaptive on", type=int, metavar="N")
    add("adaptive.max_sec", "maximum of a lengthened delay; turns adaptive on", type=float, metavar="SEC")
    add("budget", "lengthen retry delays after many retries in a minute", choices=on_off)
    add("budget.per_minute", "retries in a minute before delays are lengthened; turns budget on", type=int, metavar="N")
    add("budget.factor", "factor of lengthened delays; turns budget on", type=float, metavar="X")


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields whose options are in *arguments*, with their values."""
    return {field: value for field, value in vars(arguments).items() if field in _FLAGS}


def build_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the operation ``queue.set`` for the options *given*.

    Raises:
        InvalidRequestError: The options contradict each other.
    """
    plain = {name: given[name] for name in ("selection", "retry_share", "max_in_flight_retries") if name in given}
    cleared = {name: None if value in (DEPLOYMENT, NONE) else value for name, value in plain.items()}
    return cleared | _group_numbers("adaptive", given) | _group_numbers("budget", given)


@contextmanager
def name_options_in_errors() -> Iterator[None]:
    """Translate the fields of a refusal into the options of the command line."""
    try:
        yield
    except InvalidRequestError as error:
        problems = [Problem(_FLAGS.get(problem.field, problem.field), problem.message) for problem in error.problems]
        raise InvalidRequestError(problems) from None


def describe_own_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Describe the *options* of an answer that the queue sets itself, without those left to the deployment or off."""
    adaptive, budget = options["pressure"]["adaptive"], options["pressure"]["budget"]
    words: dict[str, str] = {}
    if options["selection"] is not None:
        words["selection"] = options["selection"]
    if options["retry_share"] is not None:
        words["retry share"] = f"{options['retry_share']:g}"
    if options["max_in_flight_retries"] is not None:
        words["retries in flight"] = f"at most {options['max_in_flight_retries']}"
    if adaptive is not None:
        cap = f"{adaptive['max_sec']:g} s"
        words["adaptive back-off"] = f"delay x (1 + due tasks / {adaptive['scale']}), up to {cap}"
    if budget is not None:
        words["retry budget"] = f"delay x {budget['factor']:g} after {budget['per_minute']} retries in a minute"
    return words


def describe_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Describe all options that hold for a queue with *options*."""
    return _DEFAULTS | describe_own_options(options) | {"paused": "yes" if options["paused"] else "no"}


def _parse_number_or(word: str, kind: Callable[[str], float], *, kind_name: str) -> Callable[[str], float | str]:
    """Return a parser of a number or *word*."""

    def parse(text: str) -> float | str:
        try:
            return word if text == word else kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {kind_name} or the word {word}") from None

    return parse


def _group_numbers(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {field.removeprefix(f"{name}."): value for field, value in given.items() if field.startswith(f"{name}.")}
    if given.get(name) == "off":
        if numbers:
            raise InvalidRequestError([Problem(_FLAGS[name], "off does not go with numbers")])
        return {name: None}
    return {name: numbers} if numbers or name in given else {}


_PAUSED: Final = "is paused: it takes new tasks and starts none"
_SOON: Final = f"running executors see it within {OPTIONS_CACHE_SEC:g} s"
_SIZES: Final = ("fresh", "retry", "delayed", "processing", "oldest due")


def add_to(topics: Commands) -> None:
    """Add ``queue`` with its sub-commands."""
    queue = topics.add_parser(
        "queue", help="list, show, declare, pause, resume and configure queues", allow_abbrev=False
    )
    actions = queue.add_subparsers(required=True, metavar="ACTION")
    add_action(actions, "ls", "list all queues with their sizes").set_defaults(command=_list)
    parser = _add_queue_action(
        actions, "declare", "allow HTTP requests to enqueue into a queue", "name of up to 63 letters, digits, _ . and -"
    )
    parser.set_defaults(command=_declare)
    parser = add_action(actions, "status", "show the sizes and the running tasks of a queue")
    parser.add_argument("queue", nargs="?", default=DEFAULT_QUEUE, metavar="QUEUE", help="default: %(default)s")
    parser.set_defaults(command=_show)
    parser = _add_queue_action(actions, "pause", "stop starting tasks of a queue; it still takes new tasks")
    parser.set_defaults(command=partial(_pause_or_resume, op="queue.pause"))
    parser = _add_queue_action(actions, "resume", "start the tasks of a paused queue again")
    parser.set_defaults(command=partial(_pause_or_resume, op="queue.resume"))
    parser = _add_queue_action(actions, "set", "change the options of a queue")
    add_options_to(parser)
    parser.set_defaults(command=partial(_set, refuse=parser.error))


def _add_queue_action(
    actions: Commands, name: str, summary: str, queue: str = "a queue that is declared or has tasks"
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary)
    parser.add_argument("queue", metavar="QUEUE", help=queue)
    return parser


def _list(arguments: argparse.Namespace) -> None:
    answer = call_all_pages(arguments, {"op": "queue.list"}, "queues")
    if print_json_if_asked(arguments, answer):
        return
    print_text(
        format_table(
            {"queue": "text", **dict.fromkeys(_SIZES, "number"), "state": "word"},
            [
                (queue["queue"], *_format_sizes(queue), "paused" if queue["paused"] else "open")
                for queue in answer["queues"]
            ],
        )
    )


def _show(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "queue.status", "queue": arguments.queue})
    if print_json_if_asked(arguments, answer):
        return
    status = answer["queue"]
    sizes = format_table(dict.fromkeys(_SIZES, "number"), [_format_sizes(status)])
    print_text(f"{_format_queue(answer)} {_PAUSED if status['paused'] else 'is open'}\n\n{sizes}")
    if status["current"]:
        print_text(
            f"\nrunning ({len(status['current'])} of {status['processing']}):\n\n{_format_running(status['current'])}"
        )
    own = describe_own_options(status["options"])
    if own:
        print_text(f"\nits own options:\n\n{format_facts(own)}")


def _set(arguments: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    given = read_options(arguments)
    if not given:
        refuse("nothing to change: give at least one option")
    with name_options_in_errors():
        answer = call_operation(arguments, {"op": "queue.set", "queue": arguments.queue, **build_options(given)})
    if not print_json_if_asked(arguments, answer):
        options = describe_options(answer["queue"]["options"])
        print_text(f"{_format_queue(answer)} now has ({_SOON}):\n\n{format_facts(options)}")


def _pause_or_resume(arguments: argparse.Namespace, *, op: str) -> None:
    answer = call_operation(arguments, {"op": op, "queue": arguments.queue})
    if not print_json_if_asked(arguments, answer):
        print_text(f"{_format_queue(answer)} {_PAUSED if answer['queue']['paused'] else 'is open'} ({_SOON})")


def _declare(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "queue.declare", "queue": arguments.queue})
    if not print_json_if_asked(arguments, answer):
        print_text(f"{_format_queue(answer)} is declared")


def _format_queue(answer: Document) -> str:
    return f"queue {clean(answer['queue']['queue'])} of {answer['database']}"


def _format_sizes(status: Document) -> tuple[str, ...]:
    age = status["oldest_due_age_sec"]
    counts = (status[name] for name in ("queue_size", "retry_queue_size", "delayed", "processing"))
    return (*map(str, counts), ABSENT if age is None else format_duration(timedelta(seconds=age)))


def _format_running(tasks: Sequence[Document]) -> str:
    return format_table(
        {"task": "word", "name": "text", "attempt": "number", "lane": "word", "since (UTC)": "word"},
        [
            (
                task["id"],
                task["name"],
                str(task["attempts"]),
                "retry" if task["is_retry"] else "fresh",
                format_time(datetime.fromisoformat(task["since"])),
            )
            for task in tasks
        ],
    )
