"""Questions to the server itself, which the driver, unlike reads of collections, does not repeat."""

from __future__ import annotations

from typing import Any

from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import AutoReconnect, NetworkTimeout, ServerSelectionTimeoutError


def asked(db: Database[Any], question: str, *, session: ClientSession | None = None) -> dict[str, Any]:
    """Return what the server answers to ``hello`` or ``ping``; asked once more where a connection was lost over it.

    The driver's watch on the server ends all connections when it was frozen itself, and primaries change.
    """
    try:
        return dict(db.client.admin.command(question, session=session))
    except (NetworkTimeout, ServerSelectionTimeoutError):  # long enough
        raise
    except AutoReconnect:
        return dict(db.client.admin.command(question, session=session))
