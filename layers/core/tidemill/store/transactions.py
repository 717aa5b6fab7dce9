"""Several writes as one, where the server can do that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pymongo import ReadPreference, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from tidemill.store.collections import translated

_T = TypeVar("_T")


def has_transactions(db: Database[Any]) -> bool:
    """Tell whether the server takes transactions: any but a standalone one does."""
    servers = _servers(db)
    if "Unknown" in servers or not servers:
        with translated():
            db.command("ping")
        servers = _servers(db)
    return "Standalone" not in servers


def in_transaction(db: Database[Any], work: Callable[[ClientSession], _T]) -> _T:
    """Return what *work* returns, with all it wrote in its session committed by a majority, or nothing of it.

    *work* is called again where the transaction met another one, so it must not remember anything. It is to raise
    the driver's errors as they are.

    Raises:
        UnavailableError: Nothing is known of the effect: all or none of it was written.
    """
    with translated(), db.client.start_session() as session:
        return session.with_transaction(
            work,
            read_concern=ReadConcern("snapshot"),
            write_concern=WriteConcern("majority"),
            read_preference=ReadPreference.PRIMARY,
        )


def _servers(db: Database[Any]) -> set[str]:
    return {one.server_type_name for one in db.client.topology_description.server_descriptions().values()}
