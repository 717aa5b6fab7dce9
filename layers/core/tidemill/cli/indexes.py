"""``tidemill indexes``: what ``reclaim`` makes while a collection is small, at any size."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pymongo

from tidemill import bootstrap, indexes
from tidemill.cli.database import database
from tidemill.cli.tables import Commands, say
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import SettingsError
from tidemill.settings import from_environment
from tidemill.store import translated
from tidemill.wording import span

_KEPT: Final = {"tasks": "done and cancelled tasks", "dead_letters": "dead letters that may be removed"}
_VARIABLES: Final = {"tasks": "RETENTION_DAYS", "dead_letters": "DEAD_LETTER_RETENTION_DAYS"}


def add_to(commands: Commands) -> None:
    """Add ``indexes``."""
    making = commands.add_parser("indexes", help="make the indexes that are missing, at any size")
    making.add_argument(
        "--retention-days",
        type=_days,
        metavar="N",
        help="change when done and cancelled tasks are removed; a shorter time removes some at once",
    )
    making.add_argument(
        "--dead-letter-retention-days",
        type=_days,
        metavar="N",
        help="the same of dead letters that may be removed: exported ones, unless the deployment says all",
    )
    making.set_defaults(command=_make)


def _days(text: str) -> timedelta:
    try:
        return from_environment({"RETENTION_DAYS": text}).retention.tasks
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("RETENTION_DAYS ")) from None


def _make(chosen: argparse.Namespace) -> None:
    # The variables of this shell are not the deployment's: they say what a new index gets, and change none.
    db = database()
    given = {"tasks": chosen.retention_days, "dead_letters": chosen.dead_letter_retention_days}
    changes = {name: value for name, value in given.items() if value is not None}
    retention = replace(bootstrap.chosen().retention, **changes)
    with translated():
        lacking = indexes.missing(db)
        with pymongo.timeout(None):  # on millions of tasks it takes as long as it takes
            for index in lacking:
                kept = (
                    f", entries kept for {span(timedelta(seconds=index.seconds(retention)))}" if index.expires else ""
                )
                say(f"making {index.name} of {index.collection}{kept}")
                indexes.create(db, (index,), retention=retention)
            for name, value in changes.items():
                indexes.create(db, _kept_as(name), retention=retention)
                say(f"{_KEPT[name]} are kept for {span(value)}, until reclaim sets its {_VARIABLES[name]}")
    say(f"{len(indexes.INDEXES)} indexes are there, {len(lacking)} of them new")


def _kept_as(name: str) -> tuple[indexes.Index, ...]:
    return tuple(one for one in indexes.INDEXES if (one.collection == DEAD_LETTERS) == (name == "dead_letters"))
