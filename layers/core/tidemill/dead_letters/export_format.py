"""Format of exported dead letters: object keys, object contents, their restore; types of an export."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import bson
from bson import ObjectId, json_util
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DuplicateKeyError

from tidemill.dead_letters.documents import MAX_DOCUMENT_BYTES, DeadLetterId, decode_id
from tidemill.documents import DEAD_LETTERS, decode, decode_shallow, encode_fields, splice_fields
from tidemill.errors import TidemillError
from tidemill.model import TaskId
from tidemill.store import tasks
from tidemill.store.connection import Tasks, translate_errors

_MAX_LEVELS: Final = 100
"""Nesting levels of an id in a key. An id with more gets a digest."""

MAX_NAME_LENGTH: Final = 200
"""Maximum number of characters behind the date. S3 allows 1024 in all, but file systems that hold copies allow 255."""

_SUFFIX: Final = ".json.gz"


def read_object_key(raw: RawBSONDocument) -> str:
    """Return the object key of a dead letter: ``dlq/<yyyy/mm/dd>/<task>-<redrives>.json.gz``, with the day of its move.

    The task id has its readable form, percent-encoded. If that is too long or ambiguous, or the id was written by hand,
    a digest of the id makes the key unique.
    """
    document = decode_shallow(raw)
    stored, moved_at = document["_id"], document.get("dead_lettered_at")
    letter_id = decode_id(decode(stored) if isinstance(stored, RawBSONDocument) else stored)
    text = _format_task_id(letter_id.task)
    name, end = quote(text, safe="").replace("~", "%7E"), f"-{letter_id.redrives}{_SUFFIX}"
    encoded = bson.encode({"_id": letter_id.document()})
    digested: bytes | None = None
    if letter_id.is_bare or not encode_fields(raw).startswith(encode_fields(RawBSONDocument(encoded))):
        digested = bytes(stored.raw if isinstance(stored, RawBSONDocument) else raw.raw)
    elif letter_id.redrives < 0 or len(name) + len(end) > MAX_NAME_LENGTH or not _is_unambiguous(text, letter_id.task):
        digested = encoded
    if digested is not None:
        end = f"~{hashlib.sha256(digested).hexdigest()}{end}"
        name = re.sub("%.?$", "", name[: MAX_NAME_LENGTH - len(end)])
    day = "undated"
    if isinstance(moved_at, datetime):
        day = f"{moved_at.year:04d}/{moved_at.month:02d}/{moved_at.day:02d}"  # %Y has no zeros for the year 1
    return f"dlq/{day}/{name}{end}"


def _format_task_id(task_id: TaskId) -> str:
    if type(task_id) is str and (tasks.is_object_id(task_id) or _encode_json_id(task_id) is not None):
        return json.dumps(task_id, ensure_ascii=False)  # without quotes it would be the key of another id
    return tasks.format_id(task_id)


def _is_unambiguous(text: str, task_id: TaskId) -> bool:
    if type(task_id) is str or isinstance(task_id, int | ObjectId):  # to MongoDB all numbers 42 are equal
        return True
    return _encode_json_id(text) == bson.encode({"_id": task_id})


def _encode_json_id(text: str) -> bytes | None:
    """Return the BSON of the id that *text* is as Extended JSON, or ``None`` if it is none."""
    if text.count("{") + text.count("[") > _MAX_LEVELS:
        return None
    try:
        value = json_util.loads(text, json_options=_READ_OPTIONS)
        return None if isinstance(value, list) else bson.encode({"_id": value})
    except _DECODE_ERRORS:
        return None


Blame: TypeAlias = Literal["object", "bucket", "either"]

PutObject: TypeAlias = Callable[[str, bytes], None]
"""Stores a body under a key and replaces what is there. Many threads call it at once.

It raises `ExportError`, or `SettingsError` if boto3 is not installed.
"""


class ExportError(TidemillError):
    """An object was not put, as far as is known.

    Attributes:
        code: A word for the cause, without any of the contents.
        blame: ``object``: this object is at fault. ``bucket``: the bucket or the connection is at fault for any object.
            ``either``: the code does not tell which.
    """

    def __init__(self, code: str, *, blame: Blame) -> None:
        self.code = code
        self.blame = blame
        super().__init__(f"S3 did not take the object ({code})")


class NotALetterError(TidemillError):
    """A file is not an exported dead letter, or is of a schema that this release cannot read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Counts of an export.

    Attributes:
        exported: Dead letters that were put and marked.
        refused: Dead letters that the bucket refuses. Each is tried again later and does not delay the others.
        failed: Puts that failed through no fault of their dead letters, as far as is known: S3 was down, denied the
            request, or was too slow. Puts that were repeated successfully count, too.
        left: Dead letters that are not exported yet, with the refused ones; counted up to `COUNT_LIMIT`.
        last_error: S3's code of the latest such failure; ``None`` if none are left.
    """

    exported: int = 0
    refused: int = 0
    failed: int = 0
    left: int = 0
    last_error: str | None = None

    def add(self, marked: ExportResult) -> ExportResult:
        """Return this result with the dead letters of *marked* added."""
        return replace(self, exported=self.exported + marked.exported, refused=self.refused + marked.refused)


FORMAT: Final = "tidemill.dead_letter"
SCHEMA_VERSION: Final = 1
MAX_OBJECT_BYTES: Final = 10 * MAX_DOCUMENT_BYTES
"""Maximum number of bytes of an object as JSON. A dead letter has fewer, even if each character is escaped as six."""

MAX_READABLE_BYTES: Final = 2**20
"""Maximum number of BSON bytes of a dead letter that is stored as JSON, too."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_BASE64_CHUNK_BYTES: Final = 3 * 2**16
"""Bytes to encode as base64 at once: a multiple of three, so that the parts can be joined."""

_DECODE_ERRORS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, BSONError, RecursionError)
"""Errors from reading a value as Extended JSON if it is none."""

_READ_OPTIONS: Final = json_util.JSONOptions(
    json_mode=json_util.JSONMode.CANONICAL, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


def encode_object(raw: RawBSONDocument) -> bytes:
    """Return the object of *raw*, which was read without the fields that change: the same bytes each time."""
    text = _encode_readable(raw) if len(raw.raw) <= MAX_READABLE_BYTES else None
    body = io.BytesIO()
    with gzip.GzipFile(fileobj=body, mode="wb", mtime=0) as packed:
        packed.write(f'{{"format":"{FORMAT}","schema_version":{SCHEMA_VERSION},"dead_letter":'.encode())
        packed.write(text or b"null")
        if text is None or not _is_reversible(text, raw):
            packed.write(b',"bson":{"$binary":{"base64":"')
            for at in range(0, len(raw.raw), _BASE64_CHUNK_BYTES):
                packed.write(base64.b64encode(raw.raw[at : at + _BASE64_CHUNK_BYTES]))
            packed.write(b'","subType":"00"}}')
        packed.write(b"}")
    return body.getvalue()


def decode_object(body: bytes) -> RawBSONDocument:
    """Return the dead letter that an object holds, bit for bit. *body* may be decompressed already.

    Raises:
        NotALetterError: *body* is no such object, or of a schema that this release does not know.
    """
    text = _decompress(body)
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        raise NotALetterError("this is not an exported dead letter: it is not JSON") from None
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise NotALetterError(f"this is not an exported dead letter: its format is not {FORMAT}")
    if envelope.get("schema_version") != SCHEMA_VERSION:
        raise NotALetterError(
            f"this dead letter has another schema than {SCHEMA_VERSION}: restore it with a newer release of tidemill"
        )
    try:
        letter = RawBSONDocument(_decode_letter(envelope, text))
        if "_id" in decode(letter):
            return letter
    except _DECODE_ERRORS:
        pass
    raise NotALetterError("this dead letter is damaged: its content is not a document")


def _encode_readable(raw: RawBSONDocument) -> bytes | None:
    try:
        return _format_json(decode(raw)).encode()
    except _DECODE_ERRORS:
        return None


def _format_json(value: Any) -> str:  # noqa: ANN401 - any BSON value
    """Return *value* as canonical Extended JSON, with characters beyond ASCII unescaped."""
    if type(value) is str:  # not isinstance: bson.Code is a subclass
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        fields = [f"{_format_json(name)}:{_format_json(field)}" for name, field in value.items()]
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_format_json, value))}]"
    return json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS)


def _is_reversible(text: bytes, raw: RawBSONDocument) -> bool:
    try:
        return bson.encode(json_util.loads(text, json_options=_READ_OPTIONS)) == raw.raw
    except _DECODE_ERRORS:
        return False


def _decode_letter(envelope: dict[str, Any], text: str) -> bytes:
    if "bson" in envelope:
        return base64.b64decode(envelope["bson"]["$binary"]["base64"], validate=True)
    return bson.encode(json_util.loads(text, json_options=_READ_OPTIONS)["dead_letter"])


def _decompress(body: bytes) -> str:
    try:
        if not body.startswith(_GZIP_MAGIC):
            return body.decode()
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            text = packed.read(MAX_OBJECT_BYTES + 1)
        if len(text) <= MAX_OBJECT_BYTES:
            return text.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        pass
    raise NotALetterError("this is not an exported dead letter: it cannot be unpacked")


def restore(dead: Tasks, body: bytes, *, now: datetime) -> DeadLetterId | None:
    """Insert the dead letter of an exported object, byte for byte, and return its id; ``None`` if it exists already.

    It counts as exported at *now* and as never redriven.

    Raises:
        NotALetterError: *body* is no such object.
    """
    letter = decode_object(body)
    marked = splice_fields(encode_fields(letter), encode_fields({"archived_at": now, "retain_from": now}))
    with translate_errors(DEAD_LETTERS):
        try:
            dead.insert_one(marked if len(marked.raw) <= MAX_DOCUMENT_BYTES else letter)
        except DuplicateKeyError:
            return None
    return decode_id(decode(letter)["_id"])
