"""The database a command works on."""

from __future__ import annotations

from typing import Any, Final

from pymongo.database import Database

from tidemill import bootstrap

PATIENCE_SEC: Final = 4.0
"""How long a command waits for a MongoDB that does not answer."""


def database() -> Database[Any]:
    """Return the database that MONGODB_URI and MONGODB_DATABASE name.

    Raises:
        SettingsError: They are missing, or cannot be used.
    """
    return bootstrap.database("cli", timeout_sec=PATIENCE_SEC)
