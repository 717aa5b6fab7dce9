"""Messages between processes: BSON documents, which begin with their own length, over stream sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode

_EMPTY: Final = 5
"""The length of the shortest BSON document."""


class GarbledError(Exception):
    """What came is no message; nothing that follows can be one either. Private to this package."""


class Frames:
    """Puts messages of up to *limit* bytes together from the pieces that arrive."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that *data* completes.

        Raises:
            GarbledError: Something else arrived, after those that were yielded.
        """
        self._buffer += data
        while len(self._buffer) >= _EMPTY:
            size = int.from_bytes(self._buffer[:4], "little")
            if not _EMPTY <= size <= self._limit:
                raise GarbledError
            if len(self._buffer) < size:
                break
            message = _message(bytes(self._buffer[:size]))
            del self._buffer[:size]
            yield message


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send *message* whole.

    Raises:
        OSError: The other side is gone, or did not read in time.
    """
    connection.sendall(bson.encode(message))


def _message(data: bytes) -> dict[str, Any]:
    try:
        return decode(RawBSONDocument(data))
    except (BSONError, ValueError, TypeError, RecursionError):
        raise GarbledError from None
