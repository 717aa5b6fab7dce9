"""Reading tasks that are looked after and not run: without what makes them large."""

from __future__ import annotations

from typing import Any, Final

_IS_OBJECT: Final = {"$eq": [{"$type": "$payload"}, "object"]}
_IS_ABSENT: Final = {"$eq": [{"$type": "$payload"}, "missing"]}

LEAN: Final[dict[str, Any]] = {
    "$set": {
        "payload": {
            "$switch": {
                "branches": [
                    {"case": _IS_OBJECT, "then": {"$literal": {}}},
                    {"case": _IS_ABSENT, "then": "$$REMOVE"},
                ],
                "default": None,
            }
        },
        "result": None,
    }
}
"""The last stage of such a read. A payload of the right kind comes as ``{}``; one that is wrong, or none, still is so.

Five hundred whole documents, each as large as they may be, are more than a function has memory for.
"""
