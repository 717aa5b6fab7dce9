"""Connections to MongoDB: clients, collections with the options of the store, and the driver's errors as Tidemill's.

Every read and write of the store relies on these options: majority writes, primary reads, raw documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import pymongo
from dns.exception import DNSException
from pymongo import ReadPreference, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidURI,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern

from tidemill.documents import LENIENT_OPTIONS, PREFIX_PATTERN, PREFIX_RULE, RAW_OPTIONS, TASKS, is_text
from tidemill.errors import (
    CredentialsError,
    MissingIndexError,
    RefusedError,
    SettingsError,
    TidemillError,
    UnavailableError,
    UnsupportedServerError,
)

Tasks: TypeAlias = Collection[Any]
"""Collection of tasks. Reads return ``RawBSONDocument``; writes take these or plain dictionaries."""

MIN_TIMEOUT_SEC = 0.05
_PING_TIMEOUT_SEC: Final = 1.0

_UNKNOWN_NAME: Final = "the name of the host is not known"
_REASONS: Final = (
    ("SSL", "TLS failed: check tls in the URI, and the certificates"),
    ("Connection refused", "connection refused: check the server and the port"),
    ("Name or service not known", _UNKNOWN_NAME),
    ("nodename nor servname", _UNKNOWN_NAME),
    ("No address associated", _UNKNOWN_NAME),
    ("replica set name", "no member belongs to the replicaSet of the URI"),
    ("Could not reach any servers", "the members have names that cannot be reached from here"),
    ("No primary available", "there is no primary now"),
)
"""Parts of the driver's text, each with the reason it proves. The first match counts: the surest stand first."""

_NO_ANSWER: Final = "no answer: check firewalls and access lists"
_BAD_VALUE = 2
_NO_QUERY_EXECUTION_PLANS = 291
_UNAUTHORIZED = 13
_AUTHENTICATION_FAILED = 18
_ATLAS_ERROR = 8000
"""Code of the refusals of Atlas itself, bad credentials among them."""

_NO_RIGHT: Final = re.compile(
    r"not authorized on (?P<database>\S+) to execute command \{ (?P<command>\w+):"
    r"|not allowed to do action \[(?P<action>\w+)\] on \[(?P<namespace>[^.\]]+)"
)
"""Refusals of a server, and of Atlas. The rest of the text quotes the command."""

_NAME_REFUSALS = frozenset({"DollarPrefixedFieldName", "52", "InvalidDBRef", "55"})

_TRANSIENT = frozenset({24, 64, 112, 262, 11601}) | frozenset(  # lock, write concern, conflict, time limit, interrupted
    {6, 7, 89, 91, 189, 9001, 10107, 11600, 11602, 13435, 13436}  # host unreachable, or no longer the primary
)


class PrefixedDatabase(Database[Any]):
    """Database that adds *prefix* to the names of its collections: ``db["tasks"]`` is the collection ``tm_tasks``.

    All code opens collections with `get_collection`, so no other code needs the prefix.
    """

    def __init__(self, db: Database[Any], *, prefix: str) -> None:
        super().__init__(db.client, db.name, db.codec_options, db.read_preference, db.write_concern, db.read_concern)
        self.prefix = prefix

    def with_options(self, *options: Any, **named_options: Any) -> Database[Any]:  # noqa: ANN401 - the driver's
        """Return a copy with other options and the same prefix."""
        return PrefixedDatabase(super().with_options(*options, **named_options), prefix=self.prefix)

    def get_collection(self, name: str, *options: Any, **named_options: Any) -> Collection[Any]:  # noqa: ANN401
        """Return the collection called prefix + *name*."""
        is_internal = name.startswith("$")  # the driver's own $cmd
        return super().get_collection(name if is_internal else self.prefix + name, *options, **named_options)

    def __getitem__(self, name: str) -> Collection[Any]:
        """Return the collection called prefix + *name*."""
        return self.get_collection(name)


def connect(uri: str, *, source: str, name: str, timeout_sec: float, pool: int) -> pymongo.MongoClient[Any]:
    """Return a client that has not connected yet, called *name* in MongoDB's log. It has up to *pool* connections.

    Messages name the *source* of the URI, never the URI itself. *timeout_sec* bounds one operation.

    Raises:
        SettingsError: The URI cannot be used.
        UnavailableError: The name of the cluster cannot be resolved.
        UnsupportedServerError: The URI is one of Amazon DocumentDB.
    """
    if ".docdb." in uri and "amazonaws.com" in uri:
        raise UnsupportedServerError("Amazon DocumentDB lacks the partial indexes that Tidemill needs: use MongoDB")
    if not uri.startswith(("mongodb://", "mongodb+srv://")):  # the driver takes any word as the name of a host
        raise SettingsError(f"{source} is not a MongoDB URI: it must start with mongodb:// or mongodb+srv://")
    try:
        return pymongo.MongoClient(
            uri,
            appname=name,
            connectTimeoutMS=2000,
            maxIdleTimeMS=60_000,
            maxPoolSize=pool,
            minPoolSize=0,
            retryWrites=True,
            serverSelectionTimeoutMS=3000,
            timeoutMS=int(timeout_sec * 1000),
            tz_aware=True,
            w="majority",
            waitQueueTimeoutMS=2000,
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError) as error:
        if isinstance(error.__cause__ or error.__context__, DNSException):
            raise UnavailableError(f"the name of the cluster in {source} cannot be resolved") from None
        raise SettingsError(f"{source} is not a valid MongoDB URI") from None


def with_prefix(db: Database[Any], prefix: str) -> Database[Any]:
    """Return *db* with *prefix* before the names of its collections. An empty prefix changes nothing.

    Raises:
        SettingsError: No collection name can begin with *prefix*.
    """
    if not prefix:
        return db
    if not re.fullmatch(PREFIX_PATTERN, prefix):
        raise SettingsError(f"the prefix of the collections {PREFIX_RULE}")
    return PrefixedDatabase(db, prefix=prefix)


def with_majority(db: Database[Any]) -> Database[Any]:
    """Return *db* with majority writes and primary reads. They override the options of the URI."""
    return db.with_options(
        read_preference=ReadPreference.PRIMARY,
        write_concern=WriteConcern(w="majority"),
        read_concern=ReadConcern("local"),
    )


def with_lenient_decoding(db: Database[Any]) -> Database[Any]:
    """Return *db* with a decoding that never raises."""
    return with_majority(db).with_options(codec_options=LENIENT_OPTIONS)


def open_tasks(db: Database[Any], name: str = TASKS) -> Tasks:
    """Return the collection of tasks, or the collection of dead letters by its *name*, with raw documents."""
    return with_majority(db).get_collection(name, codec_options=RAW_OPTIONS)


def read_by_name(collection: Collection[Any], *, without: str | None = None) -> dict[str, Mapping[str, Any]]:
    """Return the documents of a small *collection* whose ids are names, without the large field *without*."""
    fields = None if without is None else {without: 0}
    return {document["_id"]: document for document in collection.find({}, fields) if is_text(document["_id"])}


def run_server_command(db: Database[Any], question: str, *, session: ClientSession | None = None) -> dict[str, Any]:
    """Return the server's answer to ``hello`` or ``ping``; repeat the command once after a lost connection.

    Connections get lost when the primary changes, and when the process was frozen: then the driver closes all of them.
    """
    try:
        return dict(db.client.admin.command(question, session=session))
    except (NetworkTimeout, ServerSelectionTimeoutError):  # the time limit is used up
        raise
    except AutoReconnect:
        return dict(db.client.admin.command(question, session=session))


def is_reachable(db: Database[Any]) -> bool:
    """Return whether the server of *db* answers within a second."""
    try:
        with translate_errors(), limit_time(_PING_TIMEOUT_SEC):
            run_server_command(db, "ping")
    except TidemillError:
        return False
    return True


@contextmanager
def majority_read(collection: Collection[Any]) -> Iterator[tuple[Collection[Any], ClientSession]]:
    """Yield *collection* and a session for reads of the primary's present state, once a majority has that state.

    A primary that was cut off without noticing has writes that no other member will ever get. A read there waits and
    then fails. This block is not needed before a write, which waits for a majority itself.
    """
    db = collection.database
    with db.client.start_session() as session:
        run_server_command(db, "ping", session=session)
        has_members = session.operation_time is not None  # a standalone server has no other members
        yield collection.with_options(read_concern=ReadConcern("majority" if has_members else "local")), session


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Bound the total time of MongoDB's commands in this block. A timeout becomes an `UnavailableError`."""
    with pymongo.timeout(max(seconds, MIN_TIMEOUT_SEC)):
        yield


@contextmanager
def translate_errors(collection: str = TASKS) -> Iterator[None]:
    """Translate the driver's errors in this block to Tidemill's errors, which show no address.

    Raises:
        UnavailableError: MongoDB was not reached in time, or did not answer in time.
        CredentialsError: MongoDB refuses the credentials.
        MissingIndexError: A hinted index does not exist.
        RefusedError: Rights, rules or limits of the database forbid the command.
    """
    try:
        yield
    except (ServerSelectionTimeoutError, OperationFailure) as error:
        raise _translate_refusal(error, collection) from None
    except DocumentTooLarge:
        raise RefusedError("DocumentTooLarge") from None
    except PyMongoError as error:
        if error.timeout or isinstance(error, ConnectionFailure):
            raise _build_late_error(error) from None
        if isinstance(error, ConfigurationError) and "Sessions are not supported" in str(error):
            # The member was neither primary nor secondary when the driver connected to it.
            raise UnavailableError("MongoDB is starting and takes no sessions yet") from None
        raise


@contextmanager
def keep_driver_errors() -> Iterator[None]:
    """Raise the driver's errors as they are: their labels let the caller's transaction be repeated.

    Raises:
        MissingIndexError: A hinted index does not exist.
    """
    try:
        yield
    except OperationFailure as error:
        if is_missing_index(error):
            raise MissingIndexError(TASKS) from None
        raise


def is_missing_index(error: OperationFailure) -> bool:
    """Return True if *error* reports that a hinted index does not exist."""
    return error.code in (_BAD_VALUE, _NO_QUERY_EXECUTION_PLANS) and "hint" in str(error)


def is_name_refusal(error: RefusedError) -> bool:
    """Return True if MongoDB 4.4 refuses a field name like ``$x``. Only plain statements can write it there."""
    return error.code in _NAME_REFUSALS


def explain_unreached(text: str) -> str:
    """Return the reason of a failed server selection. *text* is the driver's message."""
    return next((explanation for sign, explanation in _REASONS if sign in text), _NO_ANSWER)


def _translate_refusal(error: ServerSelectionTimeoutError | OperationFailure, collection: str) -> TidemillError:
    if _is_credentials_error(error):
        return CredentialsError()
    if isinstance(error, ServerSelectionTimeoutError):
        return UnavailableError(f"MongoDB was not reached ({explain_unreached(str(error))})")
    if error.timeout:
        return _build_late_error(error)
    if is_missing_index(error):
        return MissingIndexError(collection)
    if _is_transient(error):
        return UnavailableError(f"MongoDB could not do it now (code {error.code})")
    return RefusedError(_read_code(error), _explain_missing_right(str(error)))


def _explain_missing_right(text: str) -> str | None:
    """Return the database and the role that the user lacks, or ``None`` if the server's *text* is about no right."""
    found = _NO_RIGHT.search(text)
    if found is None:
        return None
    database, command = found["database"] or found["namespace"], found["command"] or found["action"]
    role = "dbAdmin" if command == "collMod" else "readWrite"
    return (
        f"MongoDB refuses the operation (Unauthorized): its user may not {command} in the database {database}; "
        f"give it the role {role} there"
    )


def _build_late_error(error: PyMongoError) -> UnavailableError:
    return UnavailableError(f"MongoDB did not answer in time ({type(error).__name__})")


def _is_credentials_error(error: ServerSelectionTimeoutError | OperationFailure) -> bool:
    """Return True if MongoDB refuses the credentials, on a new or an open connection.

    After a refusal the driver marks the server as unknown. The next command then fails in server selection, and
    only the text of that error gives the cause.
    """
    if isinstance(error, ServerSelectionTimeoutError):
        return "AuthenticationFailed" in str(error) or "bad auth" in str(error)
    words = {_AUTHENTICATION_FAILED: "", _UNAUTHORIZED: "requires authentication", _ATLAS_ERROR: "bad auth"}
    return error.code in words and words[error.code] in str(error)


def _read_code(error: OperationFailure) -> str:
    details = error.details or {}
    first = next(iter(details.get("writeErrors", [])), details)
    return str(first.get("codeName") or first.get("code") or error.code)


def _is_transient(error: OperationFailure) -> bool:
    if error.code in _TRANSIENT or isinstance(error, WriteConcernError):
        return True
    in_bulk = isinstance(error, BulkWriteError) and bool(error.details.get("writeConcernErrors"))
    return in_bulk or error.has_error_label("RetryableWriteError")
