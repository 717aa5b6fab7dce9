"""Steps that a caller of the API takes, and what executors do with them."""

from __future__ import annotations

import time
from typing import Final

from tools.deployed.api import Api
from tools.deployed.emulator import REGION
from tools.deployed.receiver import RETRY_AFTER_SEC
from tools.deployed.waiting import wait_until
from tools.deployed.world import World

KEY: Final = {"Idempotency_Key": "order-7"}
BATCH: Final = 50
TICK_SEC: Final = 120.0
"""The schedule fires each minute; the task is due after 13 s, and a cold start may be slow."""

SOON_SEC: Final = 30.0
"""By then something has happened that is to happen at once: starts of processes are slow on a busy machine."""


def check_execute_by_hand(world: World) -> str:
    """An executor can be started by hand."""
    report = world.stack.invoke("ExecuteFunction", {"source": "tick"})
    return f"claimed {report['claimed']}, errors {report['errors']}"


def check_api_key(world: World) -> str:
    """Nobody enqueues without an API key."""
    answer = Api(url=world.api.url, key=None).call("POST", "/tasks", {"name": "noop", "payload": {}})
    assert answer.status == 403, answer
    return "403"


def check_enqueue(world: World) -> str:
    """A task that is due at once is run at once, though the next tick is far away."""
    began_at = time.monotonic()
    answer = world.api.call("POST", "/tasks", {"name": "noop", "payload": {"order": 7}}, **KEY)
    assert answer.status == 202, answer
    task = world.wait_for_status(answer.body["id"], "done", within_sec=SOON_SEC)
    return f"202, done {time.monotonic() - began_at:.2f} s later, attempts {task['attempts']}"


def check_repeat(world: World) -> str:
    """The same key is the same task; with another request it is refused."""
    first = world.api.call("POST", "/tasks", {"name": "noop", "payload": {"order": 7}}, **KEY)
    other = world.api.call("POST", "/tasks", {"name": "noop", "payload": {"order": 8}}, **KEY)
    stored = list(world.server.tidemill["tasks"].find({"payload.order": {"$in": [7, 8]}}))
    assert first.status == 200, first
    assert [str(one["_id"]) for one in stored] == [first.body["id"]], stored
    assert other.status == 409, other
    return "200 and the same id; another request 409"


def check_batch(world: World) -> str:
    """Many tasks in one request are all run."""
    began_at = time.monotonic()
    tasks = [{"name": "noop", "payload": {"batch": number}} for number in range(BATCH)]
    answer = world.api.call("POST", "/tasks/batch", {"tasks": tasks})
    assert answer.status == 202, answer
    assert len({one["id"] for one in answer.body["tasks"]}) == BATCH
    done = {"payload.batch": {"$exists": True}, "status": "done"}
    wait_until(
        lambda: world.server.tidemill["tasks"].count_documents(done) == BATCH, within_sec=SOON_SEC, what="batch done"
    )
    return f"{BATCH} done after {time.monotonic() - began_at:.2f} s"


def check_cancel(world: World) -> str:
    """A task that has not started is cancelled."""
    task_id = world.api.enqueue("noop", {}, delay_sec=3600)
    answer = world.api.call("DELETE", f"/tasks/{task_id}")
    assert (answer.status, answer.body["status"]) == (200, "cancelled"), answer
    return "200, cancelled"


def check_retry(world: World) -> str:
    """A task that fails once is run again, when the answer says."""
    task_id = world.webhook("/flaky")
    task = world.wait_for_status(task_id, "done", within_sec=SOON_SEC)
    first, second = world.receiver.find(task_id)
    assert second.at - first.at >= RETRY_AFTER_SEC, (first, second)
    assert task["attempts"] == 2, task
    return f"503 with Retry-After: {RETRY_AFTER_SEC}, then 204 after {second.at - first.at:.2f} s"


def check_recurring(world: World) -> str:
    """One time of a schedule that is delivered twice enqueues once."""
    event = {
        "tasks": [{"name": "noop", "payload": {"report": "daily"}}],
        "occurrence": {
            "schedule": f"arn:aws:scheduler:{REGION}:000000000000:schedule/default/daily",
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    }
    first, second = (world.stack.invoke("EnqueueFunction", event) for _ in range(2))
    assert (first["is_new"], second["is_new"]) == (True, False), (first, second)
    assert first["tasks"] == second["tasks"], (first, second)
    return "twice delivered, once enqueued"


def enqueue_for_tick(world: World) -> str:
    """Enqueue a task that nobody is woken for; executors at work are gone when it is due. Return its id."""
    return world.api.enqueue("noop", {"delayed": True}, delay_sec=13)


def check_tick(world: World, task_id: str) -> str:
    """The schedule starts an executor, which runs what nobody was woken for."""
    task = world.wait_for_status(task_id, "done", within_sec=TICK_SEC)
    lines = list(world.read_log("ExecuteFunction"))
    [runner] = {line["request_id"] for line in lines if line.get("message") == "attempt" and line["task_id"] == task_id}
    found = wait_until(
        lambda: [
            line["source"]
            for line in world.read_log("ExecuteFunction")
            if line.get("message") == "executed" and line["request_id"] == runner
        ],
        within_sec=SOON_SEC,
        what="the executor's report",
    )
    assert found == ["tick"], f"it was run by an executor from {found[0]}"
    late = (task["finished_at"] - task["due_at"]).total_seconds()
    return f"run by an executor of the schedule, {late:.1f} s after it was due"
