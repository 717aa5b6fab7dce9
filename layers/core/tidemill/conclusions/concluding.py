"""From a call to its conclusion, on the thread of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.classify import COMMON, Rules, asked_snooze, classify
from tidemill.conclusions.values import Raised, Returned, Snoozing
from tidemill.results import storable


def conclude(call: Callable[[], Any], rules: Rules = COMMON) -> Returned | Raised | Snoozing:
    """Make *call* and return what became of it; never raises, whatever it does, exits included.

    The result and the exception are looked at here and now, since looking may run code of theirs, and may block.
    What is returned refers to neither. An exception that another thread raises into this one may land anywhere, and
    so come out of here: then there is nothing to conclude.
    """
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whatever a function does becomes an outcome
        return _judged(error, rules)
    return Returned(storable(result))


def _judged(error: BaseException, rules: Rules) -> Raised | Snoozing:
    until = asked_snooze(error)
    return Raised(classify(error, rules)) if until is None else Snoozing(until)
