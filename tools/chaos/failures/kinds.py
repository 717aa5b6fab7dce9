"""The kinds of failure that a command may meet, and the column of the table that each belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

Column: TypeAlias = Literal[
    "moved", "conflict", "interrupted", "refused", "cut", "reply lost", "unconfirmed", "moved before", "too late"
]
"""Kinds that everybody who is asked treats alike: the primary is another one, or on its way to be; there was a write
conflict; the server gave up; it refuses; the connection was closed, before the effect, or after it in the place of the
reply; no majority has the write in time, or it moved before; it comes when nobody waits for it any more."""

Way: TypeAlias = Literal["server", "reply", "delay"]
"""Who lets it fail: the server, or the way to it, which loses the reply or delivers the command late."""

SLOW_MS: Final = 350
"""So long a command is held up, which is longer than `tools.chaos.failures.world.HASTY_SEC`."""

WRITES: Final = frozenset({"insert", "update", "delete", "findAndModify", "commitTransaction", "abortTransaction"})
"""The commands that a write concern goes with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to fail. *how* is of the server's failCommand; *times*: how often it can be had, ``None`` is always."""

    name: str
    column: Column
    way: Way = "server"
    how: Mapping[str, Any]
    times: tuple[int | None, ...] = (1, 2, None)

    def is_met_by(self, command: str) -> bool:
        """Tell whether a command of this name can fail so."""
        if command == "hello":  # also the driver's own, by which it watches the server: these are not to fail
            return self.way != "server"
        return "writeConcernError" not in self.how or command in WRITES


def _code(number: int, name: str, column: Column) -> Kind:
    return Kind(name=f"{number} {name}", column=column, how={"errorCode": number})


def _concern(number: int, name: str, column: Column, *labels: str) -> Kind:
    concern = {"code": number, "codeName": name, "errmsg": "not confirmed", "errorLabels": list(labels)}
    return Kind(name=f"write concern {number} {name}", column=column, how={"writeConcernError": concern})


KINDS: Final[tuple[Kind, ...]] = (
    _code(91, "ShutdownInProgress", "moved"),
    _code(189, "PrimarySteppedDown", "moved"),
    _code(10107, "NotWritablePrimary", "moved"),
    _code(11602, "InterruptedDueToReplStateChange", "moved"),
    _code(6, "HostUnreachable", "moved"),
    _code(262, "ExceededTimeLimit", "moved"),
    _code(50, "MaxTimeMSExpired", "interrupted"),
    _code(112, "WriteConflict", "conflict"),
    _code(11601, "Interrupted", "interrupted"),
    _code(2, "BadValue", "refused"),
    _code(13, "Unauthorized", "refused"),
    _code(14, "TypeMismatch", "refused"),
    _code(121, "DocumentValidationFailure", "refused"),
    _code(8000, "AtlasError", "refused"),
    Kind(name="connection closed", column="cut", how={"closeConnection": True}),
    Kind(name="reply lost", column="reply lost", way="reply", how={}),
    _concern(64, "WriteConcernFailed", "unconfirmed"),
    _concern(91, "ShutdownInProgress", "moved before", "RetryableWriteError"),
    Kind(name="held up", column="too late", how={"blockConnection": True, "blockTimeMS": SLOW_MS}, times=(1, None)),
    Kind(name="delivered late", column="too late", way="delay", how={}, times=(1,)),
)
