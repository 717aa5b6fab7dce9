"""``tidemill queue`` and ``tidemill declare``: how full queues are, and what each of them chooses."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from tidemill import control
from tidemill.cli.database import database, warn_where_nothing_runs
from tidemill.cli.queue_options import add_options_to, changed, choices, given_in, in_words
from tidemill.cli.tables import ABSENT, Commands, add_json_to, clean, facts, moment, say, say_json, span, table
from tidemill.clock import ServerClock
from tidemill.control.queues import OPTIONS_SEC
from tidemill.policies import QueueOptions
from tidemill.status import CurrentTask, QueueStatus, queue_status, queue_statuses

_PAUSED: Final = "is paused: it takes new tasks and starts none"
_SOON: Final = f"running executors see it within {OPTIONS_SEC:g} s"
_SIZES: Final = ("fresh", "retry", "delayed", "processing", "oldest due")


def add_to(commands: Commands) -> None:
    """Add ``queue`` with its sub-commands, and ``declare``."""
    queue = commands.add_parser("queue", help="show queues, and change what they choose")
    actions = queue.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list all queues with their sizes")
    listing.set_defaults(command=_list)
    showing = actions.add_parser("status", help="show how full a queue is and what it runs")
    showing.add_argument(
        "queue", nargs="?", default=control.DEFAULT_QUEUE, metavar="QUEUE", help="default: %(default)s"
    )
    showing.set_defaults(command=_show)
    setting = _add(actions, "set", "change what a queue chooses for itself")
    add_options_to(setting)
    setting.set_defaults(command=partial(_set, refuse=setting.error))
    pausing = _add(actions, "pause", "start no more tasks of a queue; it goes on taking new ones")
    pausing.set_defaults(command=partial(_switch, paused=True))
    resuming = _add(actions, "resume", "start the tasks of a paused queue again")
    resuming.set_defaults(command=partial(_switch, paused=False))
    for parser in (listing, showing):
        add_json_to(parser)
    declaring = commands.add_parser("declare", help="let HTTP enqueue into a queue")
    declaring.add_argument("queue", help="its name: letters, digits, _ . and -")
    declaring.set_defaults(command=_declare)


def _add(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=summary, allow_abbrev=False)
    parser.add_argument("queue", metavar="QUEUE", help="a queue that is declared or holds tasks")
    return parser


def _list(chosen: argparse.Namespace) -> None:
    db = database()
    found = queue_statuses(db, now=ServerClock(db).now())
    if chosen.json:
        say_json([one.document() for one in found])
        return
    say(
        table(
            {"queue": "text", **dict.fromkeys(_SIZES, "number"), "state": "word"},
            [(one.queue, *_sizes(one), "paused" if one.paused else "open") for one in found],
        )
    )


def _show(chosen: argparse.Namespace) -> None:
    db = database()
    status = queue_status(db, chosen.queue, now=ServerClock(db).now())
    if chosen.json:
        say_json(status.document() | {"options": asdict(status.options)})
        return
    sizes = table(dict.fromkeys(_SIZES, "number"), [_sizes(status)])
    say(f"queue {clean(status.queue)} of {db.name} {_PAUSED if status.paused else 'is open'}\n\n{sizes}")
    if status.current:
        say(f"\nrunning ({len(status.current)} of {status.processing}):\n\n{_running(status.current)}")
    own = choices(status.options)
    if own:
        say(f"\nits own choices:\n\n{facts(own)}")


def _set(chosen: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    given = given_in(chosen)
    if not given:
        refuse("nothing to change: give at least one option")
    db = database()
    was = _options(chosen.queue)
    options = changed(was, given)
    control.change_queue(db, chosen.queue, options, was=was, now=ServerClock(db).now())
    say(f"queue {chosen.queue} of {db.name} now has ({_SOON}):\n\n{facts(in_words(options))}")
    warn_where_nothing_runs(db)


def _switch(chosen: argparse.Namespace, *, paused: bool) -> None:
    db = database()
    was = _options(chosen.queue)
    control.change_queue(db, chosen.queue, replace(was, paused=paused), was=was, now=ServerClock(db).now())
    say(f"queue {chosen.queue} of {db.name} {_PAUSED if paused else 'is open'} ({_SOON})")
    warn_where_nothing_runs(db)


def _declare(chosen: argparse.Namespace) -> None:
    db = database()
    control.declare_queue(db, chosen.queue, now=ServerClock(db).now())
    say(f"queue {chosen.queue} is declared")


def _options(queue: str) -> QueueOptions:
    # Of a queue that is not declared: storing them is refused, with the sentence that says so.
    return control.options_of(database(), queue) or QueueOptions()


def _sizes(status: QueueStatus) -> tuple[str, ...]:
    oldest = ABSENT if status.oldest_due_age is None else span(status.oldest_due_age)
    counts = (status.queue_size, status.retry_queue_size, status.delayed, status.processing)
    return (*map(str, counts), oldest)


def _running(tasks: tuple[CurrentTask, ...]) -> str:
    return table(
        {"task": "word", "name": "text", "attempt": "number", "lane": "word", "since (UTC)": "word"},
        [
            (str(one.id), one.name, str(one.attempts), "retry" if one.is_retry else "fresh", moment(one.since))
            for one in tasks
        ],
    )
