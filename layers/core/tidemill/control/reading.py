"""Reading what people edit: one odd value must not stop everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo.collection import Collection
from pymongo.database import Database

from tidemill.documents import is_text
from tidemill.store import majority

_FORGIVING: Final = CodecOptions[dict[str, Any]](
    tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO, unicode_decode_error_handler="replace"
)


def forgiving(db: Database[Any]) -> Database[Any]:
    """Return *db* with reads that cannot raise."""
    return majority(db).with_options(codec_options=_FORGIVING)


def by_name(collection: Collection[Any]) -> dict[str, Mapping[str, Any]]:
    """Return the documents of a small *collection* whose ids are names."""
    return {one["_id"]: one for one in collection.find({}) if is_text(one["_id"])}
