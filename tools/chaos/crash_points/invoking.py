"""The functions in Lambda: each handler from its cold start on, with what AWS repeats where it dies."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from bson import ObjectId

from tests.builders import MINUTE, add, document
from tests.buried import failed
from tests.handlers.calls import CALLER, request, sample
from tidemill.control.callers import grant_right
from tidemill.control.declarer import declare_types
from tidemill.registry import load
from tools.chaos.crash_points.deployment import PACKAGE
from tools.chaos.crash_points.scenario import Act, Scenario, nothing
from tools.chaos.crash_points.world import DEAD, World

LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""By the clock of the server, which handlers go by."""

TASK_ID: Final = "0123456789abcdef01234567"


def _declared(world: World) -> None:
    declare_types(world.db, load(PACKAGE), package=PACKAGE, release="", now=LONG_AGO)


def _task(n: str, **fields: Any) -> dict[str, Any]:
    return document(LONG_AGO, _id=n, name="ends", payload={"n": n}) | fields


def _due(world: World) -> None:
    add(world.tasks, [_task(f"due {n}") for n in range(2)])


def _dead_executor(world: World) -> None:
    owner = sample("execute_failed")["requestContext"]["requestId"]
    lease = {"token": "t", "owner": owner, "expires_at": LONG_AGO + MINUTE}
    add(world.tasks, [_task("held", status="processing", attempts=1, lease=lease), _task("waits")])
    world.db.control.insert_one({"_id": "executor_slots", "holds": [], "waiting_since": LONG_AGO})


def _failed(world: World) -> None:
    add(world.tasks, [failed(LONG_AGO, _id=one, payload={"n": one}, attempts=1) for one in ("a", "b")])


def _to_cancel(world: World) -> None:
    _declared(world)
    add(
        world.tasks, [_task("caller's", _id=ObjectId(TASK_ID), trace={"source": CALLER}, idempotency_key=f"{CALLER}:k")]
    )


def _may_read_queues(world: World) -> None:
    _declared(world)
    grant_right(world.db, CALLER, "queues.read")


def _invoked(function: str, event: object) -> Act:
    def act(world: World) -> None:
        world.deployment.invoke(function, event, request_id=DEAD)

    return act


def _posted(*, key: str | None = None, path: str = "/tasks", **body: Any) -> Act:
    headers = {} if key is None else {"Idempotency-Key": key}
    return _invoked("enqueue", request(path=path, body=body, headers=headers))


_ONE: Final[dict[str, Any]] = {"name": "ends", "payload": {"n": "one"}}
_SEVERAL: Final = [{"name": "ends", "payload": {"n": f"{n}"}, "idempotency_key": f"k{n}"} for n in range(3)]
_RECURRING: Final = sample("enqueue_recurring") | {"tasks": [_ONE]}


def _retries() -> dict[str, Any]:
    """Two messages of the queue of retries: an invocation that Lambda gave up, and a time of a schedule."""
    [message] = sample("retries")["Records"]
    body = json.loads(message["body"]) | {"timestamp": datetime.now(UTC).isoformat()}
    keyed = _ONE | {"payload": {"n": "two"}, "idempotency_key": "k"}
    bodies = [
        body | {"requestPayload": {"tasks": [_ONE, keyed]}},
        body | {"requestPayload": _RECURRING | {"occurrence": {"schedule": "daily", "at": body["timestamp"]}}},
    ]
    return {"Records": [message | {"messageId": f"m{n}", "body": json.dumps(one)} for n, one in enumerate(bodies)]}


def _repeated(name: str, act: Act, prepare: Act = _declared) -> Scenario:
    return Scenario(use_case="functions", name=name, prepare=prepare, act=act, again=act)


SCENARIOS: Final = (
    Scenario(use_case="functions", name="POST /tasks", prepare=_declared, act=_posted(**_ONE), otherwise=[nothing]),
    _repeated("POST /tasks with a key", _posted(key="k", **_ONE)),
    _repeated("POST /tasks/batch", _posted(path="/tasks/batch", tasks=_SEVERAL)),
    _repeated("DELETE /tasks/{id}", _invoked("enqueue", request("DELETE", f"/tasks/{TASK_ID}")), _to_cancel),
    _repeated("GET /tasks/{id}", _invoked("enqueue", request("GET", f"/tasks/{TASK_ID}")), _to_cancel),
    _repeated("GET /queues/{queue}", _invoked("enqueue", request("GET", "/queues/default")), _may_read_queues),
    _repeated("a direct invocation", _invoked("enqueue", {"tasks": [_ONE, _ONE | {"payload": {"n": "two"}}]})),
    _repeated("an invocation by a schedule", _invoked("enqueue", _RECURRING)),
    _repeated("messages of the queue of retries", _invoked("enqueue", _retries())),
    Scenario(
        use_case="functions",
        name="execute",
        prepare=_due,
        act=_invoked("execute", sample("tick")),
        again=lambda world: world.deployment.invoke("execute", sample("tick"), request_id="next"),
    ),
    Scenario(use_case="functions", name="reclaim", prepare=_dead_executor, act=_invoked("reclaim", sample("reclaim"))),
    Scenario(
        use_case="functions",
        name="reclaim after a death",
        prepare=_dead_executor,
        act=_invoked("reclaim", sample("execute_failed")),
    ),
    Scenario(use_case="functions", name="archive", prepare=_failed, act=_invoked("archive", sample("archive"))),
    _repeated("operate", _invoked("operate", {"op": "queue.pause", "queue": "default"}), nothing),
)
