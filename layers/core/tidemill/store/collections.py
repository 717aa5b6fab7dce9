"""Collections with the options every write and read here relies on, and the driver's errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pymongo
from pymongo import ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern

from tidemill.documents import RAW, TASKS
from tidemill.errors import CredentialsError, MissingIndexError, RefusedError, TidemillError, UnavailableError
from tidemill.store.unreached import reason

Tasks: TypeAlias = Collection[Any]
"""A collection of tasks, read as ``RawBSONDocument``; written as that or as plain dictionaries."""

SHORTEST_SEC = 0.05
_BAD_VALUE = 2
_NO_QUERY_EXECUTION_PLANS = 291
_UNAUTHORIZED = 13
_AUTHENTICATION_FAILED = 18
_ATLAS = 8000
"""What Atlas refuses for a reason of its own, bad credentials among them."""

_NAMES = frozenset({"DollarPrefixedFieldName", "52", "InvalidDBRef", "55"})

_PASSING = frozenset({24, 64, 112, 262, 11601}) | frozenset(  # lock, write concern, conflict, time limit, interrupted
    {6, 7, 89, 91, 189, 9001, 10107, 11600, 11602, 13435, 13436}  # no way to a host, or it is no primary any more
)


def majority(db: Database[Any]) -> Database[Any]:
    """Return *db* with majority writes and reads from the primary, whatever its URI says."""
    return db.with_options(
        read_preference=ReadPreference.PRIMARY,
        write_concern=WriteConcern(w="majority"),
        read_concern=ReadConcern("local"),
    )


def open_tasks(db: Database[Any], name: str = TASKS) -> Tasks:
    """Return the collection of tasks (or, by *name*, of dead letters), undecoded."""
    return majority(db).get_collection(name, codec_options=RAW)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Bound what MongoDB may take inside, all in all; what takes longer is `UnavailableError` under `translated`."""
    with pymongo.timeout(max(seconds, SHORTEST_SEC)):
        yield


@contextmanager
def untranslated(collection: str = TASKS) -> Iterator[None]:
    """Leave the driver's errors as they are, so that a caller's transaction can be repeated by their labels.

    Raises:
        MissingIndexError: A hinted index is not there.
    """
    try:
        yield
    except OperationFailure as error:
        if is_missing_index(error):
            raise MissingIndexError(collection) from None
        raise


@contextmanager
def translated(collection: str = TASKS) -> Iterator[None]:
    """Raise what the driver raises inside as an error of ours that shows no address.

    Raises:
        UnavailableError: MongoDB was not reached, or did not answer, in time.
        CredentialsError: It does not know who asks.
        MissingIndexError: A hinted index is not there.
        RefusedError: Rights, rules or limits of the database stand against it.
    """
    try:
        yield
    except (ServerSelectionTimeoutError, OperationFailure) as error:
        raise _refusal(error, collection) from None
    except (ConnectionFailure, ExecutionTimeout) as error:
        raise UnavailableError(f"MongoDB did not answer in time ({type(error).__name__})") from None
    except DocumentTooLarge:
        raise RefusedError("DocumentTooLarge") from None
    except PyMongoError as error:
        if error.timeout:
            raise UnavailableError(f"MongoDB did not answer in time ({type(error).__name__})") from None
        if _is_about_starting(error):
            raise UnavailableError("MongoDB is starting, and takes no sessions yet") from None
        raise


def _refusal(error: ServerSelectionTimeoutError | OperationFailure, collection: str) -> TidemillError:
    if _is_about_credentials(error):
        return CredentialsError()
    if isinstance(error, ServerSelectionTimeoutError):
        return UnavailableError(f"MongoDB was not reached ({reason(str(error))})")
    if is_missing_index(error):
        return MissingIndexError(collection)
    if _is_passing(error):
        return UnavailableError(f"MongoDB could not do it now (code {error.code})")
    return RefusedError(_code_of(error))


def _is_about_credentials(error: ServerSelectionTimeoutError | OperationFailure) -> bool:
    """Tell whether MongoDB refuses to know us, or no longer knows the user of an open connection.

    Once it has, the driver takes the server for unknown: what is asked next waits for one in vain, and why is
    only in the text.
    """
    if isinstance(error, ServerSelectionTimeoutError):
        return "AuthenticationFailed" in str(error) or "bad auth" in str(error)
    words = {_AUTHENTICATION_FAILED: "", _UNAUTHORIZED: "requires authentication", _ATLAS: "bad auth"}
    return error.code in words and words[error.code] in str(error)


def _is_about_starting(error: PyMongoError) -> bool:
    """Tell whether a connection was made to a member of a replica set that was neither primary nor secondary then."""
    return isinstance(error, ConfigurationError) and "Sessions are not supported" in str(error)


def is_missing_index(error: OperationFailure) -> bool:
    """Tell whether *error* says that a hinted index does not exist."""
    return error.code in (_BAD_VALUE, _NO_QUERY_EXECUTION_PLANS) and "hint" in str(error)


def refuses_names(error: RefusedError) -> bool:
    """Tell whether MongoDB 4.4 minds names like ``$x`` in a task: there only plain statements can write one."""
    return error.code in _NAMES


def _code_of(error: OperationFailure) -> str:
    details = error.details or {}
    first = next(iter(details.get("writeErrors", [])), details)
    return str(first.get("codeName") or first.get("code") or error.code)


def _is_passing(error: OperationFailure) -> bool:
    if error.timeout or error.code in _PASSING or isinstance(error, WriteConcernError):
        return True
    in_bulk = isinstance(error, BulkWriteError) and bool(error.details.get("writeConcernErrors"))
    return in_bulk or error.has_error_label("RetryableWriteError")
