"""``tidemill indexes``: what ``reclaim`` makes while a collection is small, at any size."""

from __future__ import annotations

import argparse
from datetime import timedelta

import pymongo

from tidemill import bootstrap, indexes
from tidemill.cli.database import database
from tidemill.cli.tables import Commands, say
from tidemill.errors import SettingsError
from tidemill.settings import from_environment
from tidemill.store import translated
from tidemill.wording import span


def add_to(commands: Commands) -> None:
    """Add ``indexes``."""
    making = commands.add_parser("indexes", help="make the indexes that are missing, at any size")
    making.add_argument(
        "--retention-days",
        type=_days,
        metavar="N",
        help="change when done and cancelled tasks are removed; a shorter time removes some at once",
    )
    making.set_defaults(command=_make)


def _days(text: str) -> timedelta:
    try:
        return from_environment({"RETENTION_DAYS": text}).retention
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("RETENTION_DAYS ")) from None


def _make(chosen: argparse.Namespace) -> None:
    # RETENTION_DAYS of this shell is not the deployment's: it says what a new index gets, and changes none.
    db = database()
    retention = chosen.retention_days or bootstrap.chosen().retention
    with translated():
        lacking = indexes.missing(db)
        with pymongo.timeout(None):  # on millions of tasks it takes as long as it takes
            for index in lacking:
                kept = f", entries kept for {span(retention)}" if index.expires else ""
                say(f"making {index.name} of {index.collection}{kept}")
                indexes.create(db, (index,), retention=retention)
            if chosen.retention_days is not None:
                indexes.create(db, retention=retention)
                say(f"done and cancelled tasks are kept for {span(retention)}, until reclaim sets its RETENTION_DAYS")
    say(f"{len(indexes.INDEXES)} indexes are there, {len(lacking)} of them new")
