"""What a function returned, made storable: the work is done whatever it returned."""

from __future__ import annotations

from typing import Any, Final

from tidemill.classify import bounded
from tidemill.requests import storage_problem

MAX_RESULT_BYTES: Final = 64 * 1024


def storable(result: Any) -> Any:  # noqa: ANN401 - functions return anything
    """Return *result*, or a description where it cannot be stored or told in strict JSON; never raises.

    The description is ``{"not_stored": <name of the type>, "reason": <sentence>}``.
    """
    if result is None:
        return None
    try:
        problem = storage_problem({"result": result}, max_bytes=MAX_RESULT_BYTES)
    except BaseException as error:  # noqa: BLE001 - a hostile object may raise anything when it is looked at
        problem = f"looking at it raised {type(error).__name__}"
    if problem is None:
        return result
    return {"not_stored": bounded(type(result).__name__, 100), "reason": problem}
