"""Several writes as one, where the server can do that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, TypeVar

from pymongo import ReadPreference, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from tidemill.store.asking import asked
from tidemill.store.collections import translated, within

MAX_SEC: Final = 30.0
"""How long a transaction is repeated where its caller sets no limit."""

ENDING_SEC: Final = 0.5
_T = TypeVar("_T")


def has_transactions(db: Database[Any]) -> bool:
    """Tell whether the server takes transactions: any but a standalone one does."""
    servers = _servers(db)
    if "Unknown" in servers or not servers:
        with translated():
            asked(db, "ping")
        servers = _servers(db)
    return "Standalone" not in servers


def in_transaction(db: Database[Any], work: Callable[[ClientSession], _T]) -> _T:
    """Return what *work* returns, with all it wrote in its session committed by a majority, or nothing of it.

    *work* is called again where the transaction met another one, so it must not remember anything. It is to raise
    the driver's errors as they are. It is given up after `MAX_SEC`, or by the caller's own ``pymongo.timeout``.

    Raises:
        UnavailableError: Nothing is known of the effect: all or none of it was written.
    """
    with translated(), within(MAX_SEC), db.client.start_session() as session:
        try:
            return session.with_transaction(
                work,
                read_concern=ReadConcern("snapshot"),
                write_concern=WriteConcern("majority"),
                read_preference=ReadPreference.PRIMARY,
            )
        except PyMongoError:
            Context().run(_end, db, session)  # in a context without the deadline, which may be over
            raise


def _end(db: Database[Any], session: ClientSession) -> None:
    """Have the server forget the transaction, which it would else keep open for a minute, and its keys with it."""
    with suppress(PyMongoError), within(ENDING_SEC):
        db.client.admin.command("killSessions", [session.session_id])


def _servers(db: Database[Any]) -> set[str]:
    return {one.server_type_name for one in db.client.topology_description.server_descriptions().values()}
