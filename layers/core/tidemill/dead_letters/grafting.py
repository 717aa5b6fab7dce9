"""Documents made of fields of ours and, byte for byte, of fields that others wrote."""

from __future__ import annotations

from typing import Any

import bson


def grafted(ours: dict[str, Any], theirs: bytes, *, their_id: dict[str, Any]) -> bytes:
    """Return the document of *ours* and, behind them, all of *theirs* but its id.

    Raises:
        ValueError: *theirs* does not begin with ``_id`` as *their_id* has it.
    """
    id_element = bson.encode({"_id": their_id["_id"]})[4:-1]
    if theirs[4 : 4 + len(id_element)] != id_element:
        raise ValueError("the document does not begin with its id")
    body = bson.encode(ours)[4:-1] + theirs[4 + len(id_element) : -1] + b"\x00"
    return (len(body) + 4).to_bytes(4, "little") + body
