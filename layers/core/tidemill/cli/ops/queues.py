"""``tidemill ops queue``: how full queues are, and what each of them chooses."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from tidemill.cli.ops.asking import Document, add_action, all_of, answered, said
from tidemill.cli.ops.queue_options import add_options_to, choices, given_in, in_words, naming_the_option, wanted
from tidemill.cli.tables import ABSENT, Commands, clean, facts, say, table
from tidemill.control import DEFAULT_QUEUE, OPTIONS_SEC
from tidemill.wording import moment, span

_PAUSED: Final = "is paused: it takes new tasks and starts none"
_SOON: Final = f"running executors see it within {OPTIONS_SEC:g} s"
_SIZES: Final = ("fresh", "retry", "delayed", "processing", "oldest due")


def add_to(topics: Commands) -> None:
    """Add ``queue`` with its sub-commands."""
    queue = topics.add_parser("queue", help="show queues, and change what they choose", allow_abbrev=False)
    actions = queue.add_subparsers(required=True, metavar="ACTION")
    add_action(actions, "ls", "list all queues with their sizes").set_defaults(command=_list)
    declaring = _add(actions, "declare", "let HTTP enqueue into a queue", "its name: letters, digits, _ . and -")
    declaring.set_defaults(command=_declare)
    showing = add_action(actions, "status", "show how full a queue is and what it runs")
    showing.add_argument("queue", nargs="?", default=DEFAULT_QUEUE, metavar="QUEUE", help="default: %(default)s")
    showing.set_defaults(command=_show)
    pausing = _add(actions, "pause", "start no more tasks of a queue; it goes on taking new ones")
    pausing.set_defaults(command=partial(_switch, op="queue.pause"))
    resuming = _add(actions, "resume", "start the tasks of a paused queue again")
    resuming.set_defaults(command=partial(_switch, op="queue.resume"))
    setting = _add(actions, "set", "change what a queue chooses for itself")
    add_options_to(setting)
    setting.set_defaults(command=partial(_set, refuse=setting.error))


def _add(
    actions: Commands, name: str, summary: str, queue: str = "a queue that is declared or holds tasks"
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary)
    parser.add_argument("queue", metavar="QUEUE", help=queue)
    return parser


def _list(chosen: argparse.Namespace) -> None:
    answer = all_of(chosen, {"op": "queue.list"}, "queues")
    if said(chosen, answer):
        return
    say(
        table(
            {"queue": "text", **dict.fromkeys(_SIZES, "number"), "state": "word"},
            [(one["queue"], *_sizes(one), "paused" if one["paused"] else "open") for one in answer["queues"]],
        )
    )


def _show(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "queue.status", "queue": chosen.queue})
    if said(chosen, answer):
        return
    status = answer["queue"]
    sizes = table(dict.fromkeys(_SIZES, "number"), [_sizes(status)])
    say(f"{_named(answer)} {_PAUSED if status['paused'] else 'is open'}\n\n{sizes}")
    if status["current"]:
        say(f"\nrunning ({len(status['current'])} of {status['processing']}):\n\n{_running(status['current'])}")
    own = choices(status["options"])
    if own:
        say(f"\nits own choices:\n\n{facts(own)}")


def _set(chosen: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    given = given_in(chosen)
    if not given:
        refuse("nothing to change: give at least one option")
    with naming_the_option():
        answer = answered(chosen, {"op": "queue.set", "queue": chosen.queue, **wanted(given)})
    if not said(chosen, answer):
        say(f"{_named(answer)} now has ({_SOON}):\n\n{facts(in_words(answer['queue']['options']))}")


def _switch(chosen: argparse.Namespace, *, op: str) -> None:
    answer = answered(chosen, {"op": op, "queue": chosen.queue})
    if not said(chosen, answer):
        say(f"{_named(answer)} {_PAUSED if answer['queue']['paused'] else 'is open'} ({_SOON})")


def _declare(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "queue.declare", "queue": chosen.queue})
    if not said(chosen, answer):
        say(f"{_named(answer)} is declared")


def _named(answer: Document) -> str:
    return f"queue {clean(answer['queue']['queue'])} of {answer['database']}"


def _sizes(status: Document) -> tuple[str, ...]:
    age = status["oldest_due_age_sec"]
    counts = (status[name] for name in ("queue_size", "retry_queue_size", "delayed", "processing"))
    return (*map(str, counts), ABSENT if age is None else span(timedelta(seconds=age)))


def _running(tasks: Sequence[Document]) -> str:
    return table(
        {"task": "word", "name": "text", "attempt": "number", "lane": "word", "since (UTC)": "word"},
        [
            (
                one["id"],
                one["name"],
                str(one["attempts"]),
                "retry" if one["is_retry"] else "fresh",
                moment(datetime.fromisoformat(one["since"])),
            )
            for one in tasks
        ],
    )
