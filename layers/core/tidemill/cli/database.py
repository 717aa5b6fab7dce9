"""The database a command works on."""

from __future__ import annotations

import sys
from typing import Any, Final

from pymongo.database import Database

from tidemill import bootstrap
from tidemill.control import Directory

PATIENCE_SEC: Final = 4.0
"""How long a command waits for a MongoDB that does not answer."""


def database() -> Database[Any]:
    """Return the database that MONGODB_URI and MONGODB_DATABASE name.

    Raises:
        SettingsError: They are missing, or cannot be used.
    """
    return bootstrap.database("cli", timeout_sec=PATIENCE_SEC)


def warn_where_nothing_runs(db: Database[Any]) -> None:
    """Say on stderr that no executor has ever worked on *db*: perhaps another one was meant."""
    if not Directory(db).has_types():
        print(  # noqa: T201 - that is how a command speaks
            f"tidemill: no executor has ever registered its functions in {db.name}: is MONGODB_DATABASE right?",
            file=sys.stderr,
        )
