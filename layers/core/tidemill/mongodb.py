"""The client of MongoDB: named, with short time-outs, and refused in a sentence where its URI cannot be one."""

from __future__ import annotations

from typing import Any

import pymongo
from dns.exception import DNSException
from pymongo.errors import ConfigurationError, InvalidURI

from tidemill.errors import SettingsError, UnavailableError, UnsupportedServerError


def connect(uri: str, *, source: str, name: str, timeout_sec: float, pool: int) -> pymongo.MongoClient[Any]:
    """Return a client, which does not connect yet.

    *source* is what said the URI, for messages, which never show the URI itself. *name* is how MongoDB's log calls
    it, *pool* how many connections it has at most, *timeout_sec* what an operation may take.

    Raises:
        SettingsError: The URI cannot be used.
        UnavailableError: The name of its cluster cannot be resolved.
        UnsupportedServerError: It is Amazon DocumentDB's.
    """
    if ".docdb." in uri and "amazonaws.com" in uri:
        raise UnsupportedServerError("Amazon DocumentDB lacks the partial indexes Tidemill stands on: use MongoDB")
    if not uri.startswith(("mongodb://", "mongodb+srv://")):  # the driver takes any word for the name of a host
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
        raise SettingsError(f"{source} is not a MongoDB URI that can be used") from None
