"""What an operation ends in where it is not carried out, as a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.errors import (
    InvalidRequestError,
    NotDelayedError,
    Problem,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.operations.operate import NoOperationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A word for programs, a sentence for people, and what is wrong with which field of the request."""

    code: str
    message: str
    problems: tuple[Problem, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the answer in place of the one that was asked for."""
        details = [{"field": one.field, "message": one.message} for one in self.problems]
        return {"error": {"code": self.code, "message": self.message, "details": details}}


def refusal(error: TidemillError) -> Refusal:
    """Return what is to be said of *error*; its text shows neither addresses nor values."""
    match error:
        case NoOperationError(problems=problems):
            return Refusal(code="invalid_event", message="this is no operation", problems=problems)
        case InvalidRequestError(problems=problems):
            return Refusal(code="not_allowed", message="the operation is not allowed as it is", problems=problems)
        case TaskNotFoundError():
            return Refusal(code="not_found", message=str(error))
        case NotDelayedError():
            return Refusal(code="not_delayed", message=str(error))
        case UnavailableError():
            return Refusal(code="unavailable", message=str(error))
        case _:
            return Refusal(code="misconfigured", message=str(error))
