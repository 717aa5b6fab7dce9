"""What a test needs that uses Tidemill: a real MongoDB that leaves nothing behind."""

from tidemill.testing.mongod import (
    Mongod,
    MongodNotFoundError,
    MongodStartError,
    NotLoopbackError,
)

__all__ = ["Mongod", "MongodNotFoundError", "MongodStartError", "NotLoopbackError"]
