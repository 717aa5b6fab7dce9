"""What the helpers take for the tasks they look after."""

from __future__ import annotations

from typing import Any, TypeAlias

from pymongo.database import Database

from tidemill.client import Queue
from tidemill.clock import Clock, ServerClock

Where: TypeAlias = Queue | Database[Any]
"""A queue as applications hold it, or the database it is in."""


def database_of(where: Where) -> Database[Any]:
    """Return the database of the tasks."""
    return where.database if isinstance(where, Queue) else where


def clock_of(where: Where) -> Clock:
    """Return the clock of the queue, or that of the database."""
    return where if isinstance(where, Queue) else ServerClock(where)
