"""Single tasks of an `AsyncQueue`, the mark of its database, its clock and the registered names.

Written by tools/async_twins.py from the sync sources; do not edit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from bson.raw_bson import RawBSONDocument
from pymongo.asynchronous.database import AsyncDatabase

from tidemill import indexes
from tidemill.asynchronous.store import (
    AsyncTasks,
    find_and_modify,
    read_by_name,
    run_server_command,
    with_lenient_decoding,
    with_majority,
)
from tidemill.clock import (
    MAX_DRIFT_SEC,
    RESAMPLE_AFTER_SEC,
    RETRY_AFTER_SEC,
    SLOW_SAMPLE_SEC,
    Uptime,
    _Sample,
    truncate_to_ms,
)
from tidemill.control.task_types import (
    DECLARATIONS_CACHE_SEC,
    DEFAULT_QUEUE,
    UNKNOWN_TYPE_CACHE_SEC,
    Declarations,
    _read_retired_at,
)
from tidemill.dead_letters.documents import (
    read_task_of,
)
from tidemill.dead_letters.queries import (
    match_task,
)
from tidemill.documents import (
    COLLECTIONS,
    CONTROL,
    DEAD_LETTERS,
    QUEUES,
    TASK_TYPES,
    TASKS,
    decode,
    read_task,
)
from tidemill.errors import ForeignCollectionError, NewerSchemaError, RefusedError, TidemillError
from tidemill.model import Malformed, Task, TaskId
from tidemill.requests.payload_schema import PayloadSchema
from tidemill.store.connection import is_name_refusal, translate_errors
from tidemill.store.mark import (
    _BATCH_SIZE,
    _PREDICATES,
    MARK_ID,
    MAX_EXAMINED_DOCUMENTS,
    SCHEMA_VERSION,
    _is_adoptable,
)
from tidemill.store.tasks import (
    _build_cancellation,
    source_filter,
)


async def get(tasks: AsyncTasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the living task with this id, or ``None``. With *source* the task must come from it."""
    with translate_errors():
        raw = await tasks.find_one({"_id": {"$eq": task_id}} | source_filter(source))
    return None if raw is None else read_task(raw)


async def is_unfinished(tasks: AsyncTasks, task_id: TaskId) -> bool:
    """Return whether a task with this id is pending or processing. Its payload is not read."""
    with translate_errors():
        raw = await tasks.find_one({"_id": {"$eq": task_id}}, {"status": 1})
    return raw is not None and decode(raw).get("status") in {"pending", "processing"}


async def cancel(tasks: AsyncTasks, task_id: TaskId, *, now: datetime, force: bool = False) -> Task | Malformed | None:
    """Cancel a pending task, or request the cancellation of a processing task, and return the changed task.

    With *force* a processing task loses its lease and is cancelled at once; later writes of its worker are refused.
    ``None``: no task with this id is pending or processing.
    """
    where: dict[str, Any] = {"_id": {"$eq": task_id}, "status": {"$in": ["pending", "processing"]}}
    is_final = True if force else {"$eq": ["$status", "pending"]}
    try:
        with translate_errors():
            raw = await find_and_modify(tasks, where, [_build_cancellation(is_final, now=now)])
    except RefusedError as error:
        if not is_name_refusal(error):
            raise
        raw = await _cancel_plainly(tasks, where, now=now, force=force)
    return None if raw is None else read_task(raw)


async def _cancel_plainly(
    tasks: AsyncTasks, where: dict[str, Any], *, now: datetime, force: bool
) -> RawBSONDocument | None:
    fields = {"status": "cancelled", "updated_at": now, "finished_at": now, "retain_from": now, "next_retry_at": None}
    change = {
        "$set": fields,
        "$min": {"cancel_requested_at": now},
        "$unset": {"lease": ""},
        "$rename": {"idempotency_key": "released_key"},
    }
    with translate_errors():
        raw = await find_and_modify(tasks, where if force else where | {"status": "pending"}, change)
        return raw or await find_and_modify(tasks, where, {"$min": {"cancel_requested_at": now}})


async def find_latest(dead: AsyncTasks, task_id: TaskId, *, source: str | None = None) -> Task | Malformed | None:
    """Return the newest open dead letter of a task, under the task's own id; with *source*, only from that source.

    A redriven dead letter says nothing about its task: the task may be done and removed since.
    """
    with translate_errors(DEAD_LETTERS):
        where = {"_id": match_task(task_id), "redriven_at": None} | source_filter(source)
        raw = await dead.find_one(where, sort=[("_id", -1)], hint=indexes.BY_ID)
    if raw is None:
        return None
    return read_task_of(decode(raw), task_id)


async def require_mark(db: AsyncDatabase[Any], *, adopts: bool = False) -> None:
    """Find the mark in *db*, or write it if the collections are empty or hold only Tidemill's documents.

    With *adopts* the documents of another program (``payload``, ``status``, ``attempts``, ``next_retry_at``) count as
    tasks, because ``DEFAULT_TASK`` names their function. A database with the mark takes one command.

    Raises:
        ForeignCollectionError: A collection holds documents that are not Tidemill's. Nothing was changed.
        NewerSchemaError: A later release has changed the documents. Nothing was changed.
        UnavailableError: MongoDB did not answer; a repeat is safe.
    """
    if await refuse_foreign(db, adopts=adopts):
        return
    mark = {"schema": SCHEMA_VERSION, "names": [db[name].name for name in COLLECTIONS]}
    with translate_errors(CONTROL):
        await with_majority(db)[CONTROL].update_one({"_id": MARK_ID}, {"$setOnInsert": mark}, upsert=True)


async def refuse_foreign(db: AsyncDatabase[Any], *, adopts: bool = False) -> bool:
    """Return True if *db* has the mark; raise the errors of `require_mark`. This function writes nothing."""
    with translate_errors(CONTROL):
        mark = await with_lenient_decoding(db)[CONTROL].find_one({"_id": MARK_ID})
    if mark is not None and "schema" in mark:
        if isinstance(mark["schema"], int) and mark["schema"] <= SCHEMA_VERSION:
            return True
        raise NewerSchemaError(db.name)
    for name, is_ours in _PREDICATES.items():
        for document in await _read_first_documents(db, name):
            may_be_adopted = name == TASKS and _is_adoptable(document)
            if not is_ours(document) and (not (adopts and may_be_adopted)):
                raise ForeignCollectionError(db[name].name, database=db.name, may_be_adopted=may_be_adopted)
    return False


async def _read_first_documents(db: AsyncDatabase[Any], name: str) -> list[dict[str, Any]]:
    stand_ins = {"payload": {"$type": "$payload"}, "result": "", "attempt_log": "", "error": ""}
    with translate_errors(name):
        stages: list[dict[str, Any]] = [
            {"$limit": MAX_EXAMINED_DOCUMENTS},
            *([{"$addFields": stand_ins}] if name == TASKS else []),
        ]
        return await (await with_lenient_decoding(db)[name].aggregate(stages, batchSize=_BATCH_SIZE)).to_list()


class AsyncClock(Protocol):
    """Source of the time. Tests use their own."""

    async def now(self) -> datetime:
        """Return the time as aware UTC, truncated to milliseconds as MongoDB stores it."""


class AsyncServerClock:
    """Time of MongoDB's primary: a sample of ``hello``, advanced by the monotonic clock.

    A new sample is taken after 60 s and after a change of primary. It is also taken when wall clock and monotonic clock
    disagree on the age of the sample: then the process was frozen, or the wall clock was set.
    """

    def __init__(
        self,
        db: AsyncDatabase[Any],
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = with_majority(db)
        self._wall = wall
        self._monotonic = monotonic
        self._uptime = Uptime(wall=wall, monotonic=monotonic)
        self._sample: _Sample | None = None
        self._topology: object = None
        self._next_try = 0.0

    async def now(self) -> datetime:
        """Return the server's time.

        Raises:
            UnavailableError: There is no sample yet, and the server does not answer.
        """
        sample = self._sample
        if sample is None:
            sample = self._sample = await self._take_sample()
        elif await self._is_stale(sample) and self._uptime() >= self._next_try:
            sample = self._sample = await self._renew(sample)
        return truncate_to_ms(sample.server + timedelta(seconds=self._measure_age(sample)))

    @property
    def skew(self) -> timedelta | None:
        """Server's clock minus this machine's clock at the last sample; ``None`` before the first sample."""
        sample = self._sample
        return None if sample is None else sample.server - datetime.fromtimestamp(sample.wall, UTC)

    async def _renew(self, old: _Sample) -> _Sample:
        try:
            return await self._take_sample()
        except TidemillError:
            self._next_try = self._uptime() + RETRY_AFTER_SEC
            return old

    def _measure_age(self, sample: _Sample) -> float:
        passed, by_wall = (self._monotonic() - sample.monotonic, self._wall() - sample.wall)
        return by_wall if by_wall - passed > MAX_DRIFT_SEC else passed

    async def _is_stale(self, sample: _Sample) -> bool:
        passed = self._monotonic() - sample.monotonic
        drift = abs(self._wall() - sample.wall - passed)
        return passed > RESAMPLE_AFTER_SEC or drift > MAX_DRIFT_SEC or await self._has_moved(sample)

    async def _has_moved(self, sample: _Sample) -> bool:
        topology = self._db.client.topology_description
        if topology is self._topology:
            return False
        has_moved = await self._db.client.primary not in (None, sample.primary)
        self._topology = None if has_moved else topology
        return has_moved

    async def _take_sample(self) -> _Sample:
        sample = await self._ask_server()
        if sample.duration > SLOW_SAMPLE_SEC:
            sample = min(sample, await self._ask_server(), key=lambda candidate: candidate.duration)
        return sample

    async def _ask_server(self) -> _Sample:
        wall_before, before = (self._wall(), self._monotonic())
        with translate_errors():
            server: datetime = (await run_server_command(self._db, "hello"))["localTime"]
        wall_after, after = (self._wall(), self._monotonic())
        return _Sample(
            server=server.replace(tzinfo=UTC) if server.tzinfo is None else server.astimezone(UTC),
            wall=(wall_before + wall_after) / 2,
            monotonic=(before + after) / 2,
            duration=max(after - before, wall_after - wall_before),
            primary=await self._db.client.primary,
        )


class AsyncDirectory:
    """The declared types and queues, read at most once a minute, and once more before a name is refused.

    A read without names is not repeated. For a minute after the first type was registered, `AsyncQueue` may still accept any
    name.
    """

    def __init__(self, db: AsyncDatabase[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = with_lenient_decoding(db)
        self._monotonic = monotonic
        self._known: Declarations | None = None

    async def cached_task_type(self, name: str) -> Mapping[str, Any] | None:
        """Return the declaration of the type *name*, or ``None``; read again for an unknown type once a second."""
        if self._known is not None and self._monotonic() - self._known.read_at < UNKNOWN_TYPE_CACHE_SEC:
            return self._known.types.get(name)
        return (await self.read_declarations(names=[name])).types.get(name)

    async def read_declarations(
        self,
        *,
        names: Iterable[str] = (),
        queues: Iterable[str] = (),
        for_http: bool = False,
        now: datetime | None = None,
    ) -> Declarations:
        """Return the declarations. If any of *names* or *queues* is missing, read them once more.

        With *for_http* a type that is not known to be open to HTTP counts as missing. With *now* a type that is out of
        use counts as missing, too.
        """
        known = self._known
        if known is None or self._monotonic() - known.read_at > DECLARATIONS_CACHE_SEC:
            return await self._read()
        is_missing = any(
            (
                not (known.is_open(name) if for_http else name in known.types)
                or (now is not None and (not known.is_known(name, now=now)))
                for name in names
            )
        )
        return await self._read() if is_missing or not known.queues.issuperset(queues) else known

    async def _read(self) -> Declarations:
        with translate_errors(TASK_TYPES):
            types = await read_by_name(self._db[TASK_TYPES], without="payload_schema")
            documents = await read_by_name(self._db[QUEUES])
        declared = frozenset((name for name, queue in documents.items() if not queue.get("undeclared")))
        retired = {name: at for name, declared_type in types.items() if (at := _read_retired_at(declared_type))}
        queues = declared | {DEFAULT_QUEUE}
        self._known = Declarations(read_at=self._monotonic(), types=types, queues=queues, retired=retired)
        return self._known


class AsyncPayloadSchemas:
    """Schemas of payloads, each read once for each of its versions: they are large, and few callers need all."""

    def __init__(self, db: AsyncDatabase[Any]) -> None:
        self._types = with_lenient_decoding(db)[TASK_TYPES]
        self._known: dict[tuple[str, str], PayloadSchema | None] = {}

    async def read(self, versions: Mapping[str, str]) -> dict[str, PayloadSchema]:
        """Return the schemas by the names of their types. A schema that this release cannot read is left out."""
        missing = [name for name, version in versions.items() if (name, version) not in self._known]
        if missing:
            from tidemill.requests.payload_schema import read_schema

            where = {"_id": {"$in": missing}}
            with translate_errors(TASK_TYPES):
                texts = {
                    document["_id"]: document.get("payload_schema")
                    async for document in self._types.find(where, {"payload_schema": 1}, hint=indexes.BY_ID)
                }
            self._known |= {(name, versions[name]): read_schema(texts.get(name)) for name in missing}
        found = {name: self._known[name, version] for name, version in versions.items()}
        return {name: schema for name, schema in found.items() if schema is not None}
