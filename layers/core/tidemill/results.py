"""What a function returned, made storable: the work is done whatever it returned."""

from __future__ import annotations

from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.classify import bounded, type_name
from tidemill.documents import decode
from tidemill.requests import storage_problem

MAX_RESULT_BYTES: Final = 64 * 1024


def storable(result: Any) -> Any:  # noqa: ANN401 - functions return anything
    """Return *result*, or a description where it cannot be stored or told in strict JSON; never raises.

    What is returned is plain and a copy: nothing its function left running can change it any more. The description
    is ``{"not_stored": <name of the type>, "reason": <sentence>}``.
    """
    if result is None:
        return None
    try:
        problem = storage_problem({"result": result}, max_bytes=MAX_RESULT_BYTES)
        if problem is None:
            return decode(RawBSONDocument(bson.encode({"result": result})))["result"]
    except BaseException as error:  # noqa: BLE001 - a hostile object may raise anything when it is looked at
        problem = f"looking at it raised {type_name(error)}"
    return {"not_stored": bounded(type_name(result), 100), "reason": problem}
