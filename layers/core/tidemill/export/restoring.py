"""Dead letters read back from their objects."""

from __future__ import annotations

from datetime import datetime

import bson
import pymongo.errors
from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.letters import MAX_DOCUMENT
from tidemill.dead_letters.values import LetterId, id_of
from tidemill.documents import DEAD_LETTERS, decode
from tidemill.export.objects import restored
from tidemill.store import Tasks, translated


def restore(dead: Tasks, body: bytes, *, now: datetime) -> LetterId | None:
    """Put the letter of an exported object among the dead letters, byte for byte, and return its id.

    It counts as exported at *now* and as never redriven. ``None``: it is there, and was left as it is.

    Raises:
        NotALetterError: *body* is no such object.
    """
    letter = restored(body)
    with translated(DEAD_LETTERS):
        try:
            dead.insert_one(_marked(letter, now=now))
        except pymongo.errors.DuplicateKeyError:
            return None
    return id_of(decode(letter)["_id"])


def _marked(letter: RawBSONDocument, *, now: datetime) -> RawBSONDocument:
    marks = bson.encode({"archived_at": now, "retain_from": now})[4:-1]
    body = bytes(letter.raw)[4:-1] + marks + b"\x00"
    size = len(body) + 4
    return letter if size > MAX_DOCUMENT else RawBSONDocument(size.to_bytes(4, "little") + body)
