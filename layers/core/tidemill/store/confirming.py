"""Reads that nothing is written upon: they must not see what the next change of primary takes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern

from tidemill.store.asking import asked


@contextmanager
def confirmed(collection: Collection[Any]) -> Iterator[tuple[Collection[Any], ClientSession]]:
    """Give *collection*, and a session, to read all that the primary has by now, once a majority has it.

    A primary that was cut off, and does not know it yet, has what others never will: a read waits there, and fails.
    Where a write follows, that is waited for a majority, this is not needed.
    """
    db = collection.database
    with db.client.start_session() as session:
        asked(db, "ping", session=session)
        has_members = session.operation_time is not None  # a standalone has nobody to wait for
        yield collection.with_options(read_concern=ReadConcern("majority" if has_members else "local")), session
