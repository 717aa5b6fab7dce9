"""``tidemill indexes``: what ``reclaim`` makes while a collection is small, at any size."""

from __future__ import annotations

import argparse

import pymongo

from tidemill import bootstrap, indexes
from tidemill.cli.database import database
from tidemill.cli.tables import Commands, say
from tidemill.store import translated


def add_to(commands: Commands) -> None:
    """Add ``indexes``."""
    making = commands.add_parser("indexes", help="make the indexes that are missing, at any size")
    making.set_defaults(command=_make)


def _make(_: argparse.Namespace) -> None:
    db = database()
    retention = bootstrap.chosen().retention
    with translated():
        lacking = indexes.missing(db)
        with pymongo.timeout(None):  # on millions of tasks it takes as long as it takes
            for index in lacking:
                say(f"making {index.name} of {index.collection}")
                indexes.create(db, (index,), retention=retention)
            indexes.create(db, retention=retention)
    say(f"{len(indexes.INDEXES)} indexes are there, {len(lacking)} of them new")
