"""What an operator changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from tests.builders import add, document, lease
from tests.buried import letters
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.control.declarer import declare_types
from tidemill.documents import DEAD_LETTERS
from tidemill.policy.retry import DEFAULT
from tidemill.registry import Registry
from tidemill.store.connection import open_tasks
from tools.chaos.failures.cases.case import Case, Effect, share
from tools.chaos.failures.cases.ticks import archived
from tools.chaos.failures.world import World

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


def _asked(op: str, **fields: Any) -> Callable[[World], Any]:
    def ask(world: World) -> Any:
        context = AdminContext(db=world.db, clock=world.clock, retry=DEFAULT, is_deployed=True, put=world.shelf.put)
        about = {"id": str(world.kept["id"])} if "id" in world.kept else {}
        return operate(read_operation({"op": op, **about, **fields}), context).document()

    return ask


def _registered(world: World) -> Any:
    registry = Registry()
    registry.task("noop")(lambda _payload, _ctx: None)
    return declare_types(world.db, registry, package="tasks", release="2", now=world.clock.now())


def _task(**fields: Any) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        now = world.clock.now()
        own = {name: value(now) if callable(value) else value for name, value in fields.items()}
        [world.kept["id"]] = world.kept["ids"] = add(open_tasks(world.sound), [document(now, **own)])

    return prepare


def _running() -> Callable[[World], None]:
    def held(now: Any) -> dict[str, Any]:
        own = lease(now)
        return {"token": own.token, "owner": own.owner, "expires_at": own.expires_at}

    return _task(status="processing", attempts=1, lease=held)


def _dead(world: World) -> None:
    now = world.clock.now()
    world.sound["task_types"].insert_one({"_id": "noop", "http": True})
    world.kept["ids"] = [f"task {n}" for n in range(4)]
    dead = letters(now - DAY, world.kept["ids"], archived_at=None)
    for one in dead:
        del one["archived_at"]
    add(open_tasks(world.sound, DEAD_LETTERS), dead)


def _counted(collection: str, where: dict[str, Any], of: int = 1) -> Callable[[World], Effect]:
    return lambda world: share(world.sound[collection].count_documents(where), of)


def _purged(world: World) -> Effect:
    return share(4 - world.sound["tasks_dlq"].count_documents({}), 4)


def _redriven(world: World) -> Effect:
    back = world.sound["tasks"].count_documents({"status": "pending", "redrives": 1})
    return share(back + world.sound["tasks_dlq"].count_documents({"redriven_at": {"$ne": None}}), 8)


def _is_left(answer: dict[str, Any]) -> bool:
    return bool(answer["refused"] or answer["next"])


def _phased(command: str, earlier: Sequence[str]) -> str:
    """Tell what is read for the answer apart from what is read for the change."""
    return f"{command} later" if "findAndModify queues" in earlier and command == "find queues" else command


def _ids(world: World) -> list[Any]:
    return list(world.kept["ids"])


def _later_archived(world: World) -> None:
    world.clock.move(HOUR)
    archived(world)


def _redriven_again(world: World) -> None:
    _later_archived(world)
    _asked("dlq.redrive", all=True)(world)


_PAUSE: Final = _asked("queue.pause", queue="default")
_SET: Final = _asked("queue.set", queue="default", max_in_flight_retries=3)
_GRANT: Final = _asked("caller.grant", key_id="key1", right="queues.read")
_CANCEL: Final = _asked("task.cancel")
_FORCE: Final = _asked("task.cancel", force=True)
_RETRY: Final = _asked("task.retry")
_REDRIVE: Final = _asked("dlq.redrive", all=True)
_PURGE: Final = _asked("dlq.purge", all=True)
_EXPORT: Final = _asked("dlq.export")

_DELAYED: Final = _task(due_at=lambda now: now + HOUR, next_retry_at=lambda now: now + HOUR)
_CANCELLED: Final = _counted("tasks", {"status": "cancelled"})
_CAPPED: Final = _counted("queues", {"max_in_flight_retries": 3})
_DUE: Final = _counted("tasks", {"next_retry_at": None})

CASES: Final = (
    Case(name="pause", run=_PAUSE, effect=_counted("queues", {"paused": True}), again=_PAUSE, label=_phased),
    Case(name="set a cap", run=_SET, effect=_CAPPED, again=_SET, label=_phased),
    Case(name="grant a right", run=_GRANT, effect=_counted("control", {"key1": "queues.read"}), again=_GRANT),
    Case(name="cancel", prepare=_task(), run=_CANCEL, effect=_CANCELLED, again=_CANCEL, accepted=_ids),
    Case(name="cancel by force", prepare=_running(), run=_FORCE, effect=_CANCELLED, again=_FORCE, accepted=_ids),
    Case(name="retry now", prepare=_DELAYED, run=_RETRY, effect=_DUE, accepted=_ids),
    Case(
        name="redrive", prepare=_dead, run=_REDRIVE, effect=_redriven, again=_redriven_again, is_atomic=False,
        tells_of_a_rest=_is_left, accepted=_ids, is_at_rest=False,
    ),
    Case(name="purge", prepare=_dead, run=_PURGE, effect=_purged, again=_PURGE),
    Case(
        name="export", prepare=_dead, run=_EXPORT, again=_EXPORT, accepted=_ids, is_atomic=False,
        effect=_counted("tasks_dlq", {"archived_at": {"$ne": None}}, of=4),
    ),
    Case(name="register", run=_registered, effect=_counted("task_types", {"_id": "noop"}), again=_registered),
)  # fmt: skip
