"""The deployed function: HTTP requests, a direct invoke, and a schedule; each as of a container that knows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.builders import make_service
from tests.handlers.calls import CALLER, Answer, request
from tests.handlers.conftest import Deployed
from tidemill.bootstrap import deployment
from tidemill.control.callers import grant_right
from tidemill.enqueue.rules import EnqueueRules
from tidemill.errors import RefusedError, UnavailableError
from tidemill.requests.tasks import NewTask
from tidemill.testing import FakeContext
from tools.chaos.failures.cases.case import Case, Effect, share
from tools.chaos.failures.world import World

NOOP: Final[dict[str, Any]] = {"name": "noop", "payload": {"n": 1}}
OCCURRENCE: Final = {"schedule": "arn:aws:scheduler:eu-central-1:1:schedule/d/x", "at": "2031-07-01T06:00:00Z"}
ENQUEUE: Final = "tidemill-enqueue"
REQUEST_ID: Final = "request-1"


def _forgetful(world: World) -> Deployed:
    """The function, that has its client and has read nothing yet."""
    warm = deployment()
    for name in ("queue", "enqueue_service", "caller_rights"):  # cached properties
        vars(warm).pop(name, None)
    return world.functions


def _said(answer: Answer) -> Any:
    """Return what was answered; raise what an error stands for."""
    if answer.status == 503:
        assert answer.headers["Retry-After"] == "5"
        raise {"unavailable": UnavailableError, "misconfigured": RefusedError}[answer.code]("503")
    assert answer.status in {200, 202}, answer.text
    return answer.body


def _post(world: World) -> Any:
    return _said(_forgetful(world).post(NOOP))


def _post_keyed(world: World) -> Any:
    return _said(_forgetful(world).post(NOOP, key="order-7"))


def _post_batch(world: World) -> Any:
    body = {"tasks": [NOOP | {"idempotency_key": f"order-{n}"} for n in range(3)]}
    return _said(_forgetful(world).http(request("POST", "/tasks/batch", body=body)))


def _get(world: World) -> Any:
    return _said(_forgetful(world).get(str(world.kept["id"])))


def _get_queue(world: World) -> Any:
    return _said(_forgetful(world).http(request("GET", "/queues/default")))


def _delete(world: World) -> Any:
    return _said(_forgetful(world).delete(str(world.kept["id"])))


def _direct(world: World) -> Any:
    return _forgetful(world).invoke("enqueue", NOOP, FakeContext(request_id=REQUEST_ID))


def _recurring(world: World) -> Any:
    return _forgetful(world).invoke("enqueue", {"tasks": [NOOP, NOOP], "occurrence": OCCURRENCE})


def _declared(world: World) -> None:
    world.sound["task_types"].insert_one({"_id": "noop", "http": True})


def _enqueued(world: World) -> None:
    _declared(world)
    rules = EnqueueRules(is_single=True)
    [one] = make_service(world.sound).submit([NewTask(**NOOP)], rules=rules, trace={"source": CALLER})
    world.kept["id"] = one.id


def _allowed_to_read(world: World) -> None:
    _enqueued(world)
    grant_right(world.sound, CALLER, "queues.read")


def _stored(of: int) -> Callable[[World], Effect]:
    return lambda world: share(world.sound["tasks"].count_documents({}), of)


def _cancelled(world: World) -> Effect:
    return share(world.sound["tasks"].count_documents({"status": "cancelled"}), 1)


def _recurred(world: World) -> Effect:
    marks = world.sound["occurrences"].count_documents({})
    return share(world.sound["tasks"].count_documents({}) + marks, 3)


def _looked_at(_: World) -> Effect:
    return "all"


def _kept(world: World) -> list[Any]:
    return [world.kept["id"]]


CASES: Final = (
    Case(name="POST /tasks", appname=ENQUEUE, prepare=_declared, run=_post, effect=_stored(1)),
    Case(
        name="POST /tasks, keyed",
        appname=ENQUEUE,
        prepare=_declared,
        run=_post_keyed,
        effect=_stored(1),
        again=_post_keyed,
    ),
    Case(
        name="POST /tasks/batch",
        appname=ENQUEUE,
        prepare=_declared,
        run=_post_batch,
        effect=_stored(3),
        again=_post_batch,
    ),
    Case(
        name="GET /tasks/{id}",
        appname=ENQUEUE,
        prepare=_enqueued,
        run=_get,
        effect=_looked_at,
        is_atomic=False,
        accepted=_kept,
    ),
    Case(
        name="GET /queues/{queue}",
        appname=ENQUEUE,
        prepare=_allowed_to_read,
        run=_get_queue,
        effect=_looked_at,
        is_atomic=False,
        accepted=_kept,
    ),
    Case(
        name="DELETE /tasks/{id}",
        appname=ENQUEUE,
        prepare=_enqueued,
        run=_delete,
        effect=_cancelled,
        again=_delete,
        accepted=_kept,
    ),
    Case(name="invoked directly", appname=ENQUEUE, prepare=_declared, run=_direct, effect=_stored(1), again=_direct),
    Case(
        name="invoked by a schedule",
        appname=ENQUEUE,
        prepare=_declared,
        run=_recurring,
        effect=_recurred,
        again=_recurring,
    ),
)
