"""Which answer an error of ours is to who sent the request."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import (
    DuplicateKeyError,
    InvalidRequestError,
    Problem,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.gateway.answers import HttpError


def not_allowed(problems: Sequence[Problem]) -> HttpError:
    """Return the answer to a request that can be read and is not allowed."""
    return HttpError(422, "not_allowed", "the request can be read, but is not allowed as it is", problems)


def refusal(error: TidemillError) -> HttpError:
    """Return the answer that *error* is; of what is wrong with the deployment only the log is to tell."""
    match error:
        case HttpError():
            return error
        case InvalidRequestError(problems=problems):
            return not_allowed(problems)
        case DuplicateKeyError(problems=problems):
            return HttpError(409, "key_in_use", "the idempotency key was used with another request", problems)
        case TaskNotFoundError():
            return HttpError(404, "not_found", "there is no such task")
        case UnavailableError():
            return HttpError(503, "unavailable", f"{error}; try again: a POST is safe with the same Idempotency-Key")
        case _:
            return HttpError(503, "misconfigured", "the queue is not set up; its log says what is missing")
