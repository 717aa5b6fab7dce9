"""What somebody with an API key of their own tries on others, and what they may be answered."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from bson import ObjectId

from tests.handlers.calls import request

STRANGER: Final = "stranger42"
VICTIM: Final = "victim7777"
NOBODY: Final = "0" * 24
REFUSED: Final = frozenset({400, 404, 413, 415, 422})
TAKEN: Final = frozenset({200, 202})
OPERATORS: Final[tuple[Any, ...]] = (
    *({"$gt": ""}, {"$ne": None}, {"$regex": ".*"}, {"$where": "sleep(9)"}, {"$in": [None, "a"]}, {"$exists": True}),
    *({"$oid": NOBODY}, {"$code": "1"}, {"$numberLong": "1"}, {"$expr": 1}, {"$set": {"status": "done"}}, ["$ne"], []),
)
FIELDS: Final = (
    *("name", "queue", "priority", "delay_sec", "not_before", "expires_at", "max_retries", "timeout_sec"),
    *("retry", "payload", "idempotency_key", "_id", "trace", "source", "lease", "status", "tasks"),
)
OPS: Final[Mapping[str, str]] = MappingProxyType({
    **dict.fromkeys(("task.show", "task.explain", "task.retry", "task.cancel", "dlq.show"), "id"),
    **dict.fromkeys(("queue.status", "queue.pause", "queue.resume", "queue.declare", "queue.set"), "queue"),
    **dict.fromkeys(("task.list", "dlq.list", "dlq.redrive", "dlq.purge"), "name"),
})  # fmt: skip
LINES: Final = (
    *('x\n{"level": "CRITICAL", "message": "forged"}', "x\r\nforged", "\x1b[2J\x1b[31mforged", "x\u2028forged"),
    *('", "level": "CRITICAL", "x": "', "\u202egro.elpmaxe", "x\x00y", "%0d%0aforged", "${jndi:ldap://forged/a}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One call of a function.

    Attributes:
        kind: What is tried.
        may_be: The statuses that it may be answered with; without any, that it has to be refused another way.
        is_found_nowhere: Whether the answer has to be that to an id which there never was.
    """

    kind: str
    event: Any
    function: str = "enqueue"
    may_be: frozenset[int] = field(default_factory=frozenset)
    is_found_nowhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """What others have: ids of their tasks in every state, and a key."""

    ids: tuple[str, ...]
    key: str


Try: TypeAlias = Callable[[random.Random, Victim], Attack]


def attacks(rng: random.Random, victim: Victim) -> Iterator[Attack]:
    """Yield one of each kind in turn, for ever."""
    while True:
        for one in _TRIES:
            yield one(rng, victim)


def _in_a_body(rng: random.Random, _: Victim) -> Attack:
    name = rng.choice(FIELDS)
    value: Any = rng.choice(OPERATORS) if name != "payload" else [rng.choice(OPERATORS)]
    body = {"name": "noop", "payload": {}} | {name: value}
    batch = rng.random() < 0.5 and name != "tasks"
    event = _posted({"tasks": [{"name": "noop", "payload": {}}, body]} if batch else body, batch=batch)
    return Attack(kind="operators in a body", event=event, may_be=REFUSED)


def _in_a_payload(rng: random.Random, _: Victim) -> Attack:
    body = {"name": "noop", "payload": {"$where": rng.choice(OPERATORS), "a.b": 1, "$set": 1, "": 0}}
    return Attack(kind="operators in a payload", event=_posted(body), may_be=TAKEN)


def _in_a_key(rng: random.Random, _: Victim) -> Attack:
    event = _posted({"name": "noop", "payload": {}}, {"Idempotency-Key": json.dumps(rng.choice(OPERATORS))})
    return Attack(kind="operators in a key", event=event, may_be=TAKEN)


def _in_a_query(rng: random.Random, victim: Victim) -> Attack:
    query = {f"{rng.choice(FIELDS)}[$ne]": "x", "sort": "$natural"}
    event = _asked("GET", rng.choice(victim.ids), queryStringParameters=query)
    return Attack(kind="operators in a query", event=event, may_be=REFUSED)


def _in_a_path(rng: random.Random, victim: Victim) -> Attack:
    task_id = rng.choice(victim.ids)
    text = rng.choice((
        *("$gt", "[$ne]", '{"$gt":""}', "%7B%22%24gt%22%3A%22%22%7D", "..", f"..%2f{task_id}", f"{task_id}%00"),
        *(f"{task_id},", f" {task_id}", f"{task_id}/x", "*", f'ObjectId("{task_id}")', task_id[:12], f"{task_id}\n"),
    ))  # fmt: skip
    return Attack(kind="operators in a path", event=_asked(_method(rng), text), may_be=frozenset({404}))


def _of_others(rng: random.Random, victim: Victim) -> Attack:
    task_id = rng.choice(victim.ids)
    spelled = rng.choice((task_id, task_id.upper()))
    event = _asked(_method(rng), spelled)
    return Attack(kind="tasks of others", event=event, may_be=frozenset({404}), is_found_nowhere=True)


def _of_neighbours(rng: random.Random, victim: Victim) -> Attack:
    near = int(rng.choice(victim.ids), 16) + rng.choice((-2, -1, 1, 2))
    event = _asked(_method(rng), f"{near:024x}")
    return Attack(kind="ids nearby", event=event, may_be=frozenset({404, 200}))


def _key_of_others(rng: random.Random, victim: Victim) -> Attack:
    key = rng.choice((
        *(victim.key, f"{VICTIM}:{victim.key}", f":{victim.key}", f"{STRANGER}:{VICTIM}:{victim.key}"),
        *(f"direct:{victim.key}", f"../{VICTIM}:{victim.key}", f"{VICTIM}%3A{victim.key}"),
    ))  # fmt: skip
    return Attack(kind="keys of others", event=_posted(_SECRETIVE, {"Idempotency-Key": key}), may_be=TAKEN)


def _as_somebody_else(rng: random.Random, _: Victim) -> Attack:
    names = ("x-api-key", "x-api-key-id", "apiKeyId", "x-amzn-api-key-id", "x-forwarded-user", "authorization", "from")
    event = _posted({"name": "noop", "payload": {}}, {rng.choice(names): VICTIM})
    if rng.random() < 0.5:
        event["requestContext"]["identity"] |= {"apiKey": VICTIM, "user": VICTIM, "caller": VICTIM, "userArn": VICTIM}
    return Attack(kind="other names claimed", event=event, may_be=TAKEN)


def _large(rng: random.Random, _: Victim) -> Attack:
    depth, size = rng.choice((70, 900, 100_000)), rng.choice((300_000, 4_200_000, 6_000_000))
    body = rng.choice((
        lambda: '{"name": "noop", "payload": ' + '{"a":' * depth + "1" + "}" * depth + "}",
        lambda: "[" * size,
        lambda: json.dumps({"name": "noop", "payload": {"a": "x" * size}}),
        lambda: json.dumps({"name": "x" * size, "payload": {}}),
        lambda: json.dumps({"name": "noop", "payload": {"a": [1] * (size // 10)}}),
        lambda: '{"name": "noop", "payload": {"a": ' + "1" * size + "}}",
    ))()  # fmt: skip
    return Attack(kind="huge and deep bodies", event=request(body=body, caller=STRANGER), may_be=REFUSED)


def _into_the_log(rng: random.Random, _: Victim) -> Attack:
    text = rng.choice(LINES)
    headers = {"x-correlation-id": text, "x-request-id": text, "traceparent": text, "User-Agent": text}
    body: dict[str, Any] = {"name": rng.choice(("noop", text)), "payload": {text: text}}
    if rng.random() < 0.5:
        body[text] = text
    event = _posted(body, headers | rng.choice(({}, {"Idempotency-Key": text})))
    if rng.random() < 0.3:
        event["path"] = f"/tasks/{text}"
    return Attack(kind="lines in the log", event=event, may_be=REFUSED | TAKEN)


def _to_the_operator(rng: random.Random, _: Victim) -> Attack:
    op, name = rng.choice([*OPS.items()])
    event = {"op": op, name: rng.choice(OPERATORS)}
    return Attack(kind="operators for operate", event=event, function="operate")


def _to_the_schedule(rng: random.Random, _: Victim) -> Attack:
    task = {"name": "noop", "payload": {}, rng.choice(("name", "queue", "priority", "idempotency_key")): {"$ne": 1}}
    event = {"tasks": [task], "occurrence": {"schedule": "s", "at": rng.choice(OPERATORS)}}
    return Attack(kind="operators in a schedule", event=rng.choice((event, task)))


def _to_the_executor(rng: random.Random, _: Victim) -> Attack:
    name = rng.choice(("queues", "lane", "selection", "batch_size", "concurrency", "source", "$where"))
    event = {name: rng.choice([one for one in OPERATORS if one != []])}
    return Attack(kind="operators for executors", event=event, function=rng.choice(("execute", "reclaim", "archive")))


_SECRETIVE: Final = {"name": "noop", "payload": {"card": 4111}}
_TRIES: Final[tuple[Try, ...]] = (
    *(_in_a_body, _in_a_payload, _in_a_key, _in_a_query, _in_a_path, _of_others, _of_neighbours, _key_of_others),
    *(_as_somebody_else, _large, _into_the_log, _to_the_operator, _to_the_schedule, _to_the_executor),
)


def _posted(body: Mapping[str, Any], headers: Mapping[str, str] | None = None, *, batch: bool = False) -> Any:
    path = "/tasks/batch" if batch else "/tasks"
    return request(path=path, body=json.dumps(body), headers=headers, caller=STRANGER)


def _asked(method: str, text: str, **changes: Any) -> Any:
    return request(method, f"/tasks/{text}", caller=STRANGER, **changes)


def _method(rng: random.Random) -> str:
    return rng.choice(("GET", "DELETE"))


def is_id(text: object) -> bool:
    """Tell whether *text* is the id of a task."""
    return isinstance(text, str) and ObjectId.is_valid(text)
