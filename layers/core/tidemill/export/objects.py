"""A dead letter as an object: the key it is stored under, what is in it, and the way back.

The object is gzip of one JSON object, in UTF-8 and strict::

    {"format": "tidemill.dead_letter", "schema_version": 1, "dead_letter": <the letter in canonical Extended JSON>}

Where Extended JSON does not lead back to the very bytes of the letter (text that is no UTF-8, names that are there
twice, a payload that looks like Extended JSON itself), they stand in ``bson`` beside it, and hold. Of a letter above
1 MiB, which no enqueue makes, there are these bytes alone, and ``dead_letter`` is null: its text may take 60 times
the memory.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.letters import MAX_DOCUMENT
from tidemill.documents import decode
from tidemill.export.canonical import canonical
from tidemill.export.values import NotALetterError

FORMAT: Final = "tidemill.dead_letter"
SCHEMA_VERSION: Final = 1
MAX_TEXT: Final = 10 * MAX_DOCUMENT
"""Bytes. A letter has fewer as JSON, even where each of its characters is written as six."""

READABLE: Final = 2**20
"""Bytes of BSON up to which a letter is there as JSON, too."""

_GZIP: Final = b"\x1f\x8b"
_PART: Final = 3 * 2**16
"""Bytes that are written as base64 at once; of all but the last a multiple of three."""

_BROKEN: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, BSONError, RecursionError)
"""What reading something for Extended JSON raises where it is none."""

_READ: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


def content(raw: RawBSONDocument) -> bytes:
    """Return the object of the letter *raw*, read without the fields that change: the same bytes each time."""
    text = _readable(raw) if len(raw.raw) <= READABLE else None
    body = io.BytesIO()
    with gzip.GzipFile(fileobj=body, mode="wb", mtime=0) as packed:
        packed.write(f'{{"format":"{FORMAT}","schema_version":{SCHEMA_VERSION},"dead_letter":'.encode())
        packed.write(text or b"null")
        if text is None or not _leads_back(text, raw):
            packed.write(b',"bson":{"$binary":{"base64":"')
            for at in range(0, len(raw.raw), _PART):
                packed.write(base64.b64encode(raw.raw[at : at + _PART]))
            packed.write(b'","subType":"00"}}')
        packed.write(b"}")
    return body.getvalue()


def restored(body: bytes) -> RawBSONDocument:
    """Return the letter that an object holds, bit for bit; it may have been unpacked.

    Raises:
        NotALetterError: It is no such object, or of a schema that this release does not know.
    """
    text = _unpacked(body)
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        raise NotALetterError("this is no exported dead letter: it is not JSON") from None
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise NotALetterError(f"this is no exported dead letter: its format is not {FORMAT}")
    if envelope.get("schema_version") != SCHEMA_VERSION:
        raise NotALetterError(
            f"this dead letter is of another schema than {SCHEMA_VERSION}: a newer release of tidemill restores it"
        )
    try:
        letter = RawBSONDocument(_bytes(envelope, text))
        if "_id" in decode(letter):
            return letter
    except _BROKEN:
        pass
    raise NotALetterError("this dead letter is damaged: what it holds is no document")


def _readable(raw: RawBSONDocument) -> bytes | None:
    try:
        return canonical(decode(raw))
    except _BROKEN:
        return None


def _leads_back(text: bytes, raw: RawBSONDocument) -> bool:
    try:
        return bson.encode(json_util.loads(text, json_options=_READ)) == raw.raw
    except _BROKEN:
        return False


def _bytes(envelope: dict[str, Any], text: str) -> bytes:
    if "bson" in envelope:
        return base64.b64decode(envelope["bson"]["$binary"]["base64"], validate=True)
    return bson.encode(json_util.loads(text, json_options=_READ)["dead_letter"])


def _unpacked(body: bytes) -> str:
    try:
        if not body.startswith(_GZIP):
            return body.decode()
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            text = packed.read(MAX_TEXT + 1)
        if len(text) <= MAX_TEXT:
            return text.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        pass
    raise NotALetterError("this is no exported dead letter: it cannot be unpacked")
