"""One document found and changed by one command, and returned raw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession

from tidemill.documents import RAW
from tidemill.store.collections import Tasks


class _Answer(RawBSONDocument):
    """A part of what the server answers, which the driver may add to.

    Where the primary changes before a majority has confirmed, it adds that the command can be repeated. It does so by
    ``update``, which raw documents lack.
    """

    __slots__ = ("_added",)

    def __init__(self, data: bytes, options: CodecOptions[RawBSONDocument] | None = None) -> None:
        super().__init__(data, options)
        self._added: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a mapping's
        return self._added[name] if name in self._added else super().__getitem__(name)

    def update(self, more: Mapping[str, Any]) -> None:
        self._added.update(more)


_ANSWERS: Final = RAW.with_options(document_class=_Answer)


def changed(
    tasks: Tasks,
    where: Mapping[str, Any],
    change: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    upsert: bool = False,
    hint: str | None = None,
    session: ClientSession | None = None,
) -> RawBSONDocument | None:
    """Change the document that *where* finds and return it as it then is, ``None`` where there is none."""
    found: RawBSONDocument | None = tasks.with_options(codec_options=_ANSWERS).find_one_and_update(
        where, change, upsert=upsert, return_document=ReturnDocument.AFTER, hint=hint, session=session
    )
    return found
