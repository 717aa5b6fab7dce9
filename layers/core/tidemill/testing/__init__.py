"""What a test needs that uses Tidemill: a real MongoDB that leaves nothing behind, and a Lambda context."""

from tidemill.testing.context import FakeContext
from tidemill.testing.mongod import (
    Mongod,
    MongodNotFoundError,
    MongodStartError,
    NotLoopbackError,
)

__all__ = ["FakeContext", "Mongod", "MongodNotFoundError", "MongodStartError", "NotLoopbackError"]
