"""An outage of MongoDB while schedules fire: what Lambda gave up is stored afterwards, and once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from tools.deployed.emulator import REGION
from tools.deployed.waiting import wait_until
from tools.deployed.world import World

SCHEDULES: Final = 200
FIRES_EACH_SEC: Final = 300.0
"""Each schedule fires once in so many seconds, all of them evenly spread."""

RECOVERY_SEC: Final = 900.0
"""What the queue of retries may need once MongoDB answers: its visibility timeout, twice, and a while."""


def check_outage(world: World, *, outage_sec: float) -> str:
    """Let schedules fire into a MongoDB that does not answer; once it does, each time is enqueued once and run."""
    assert world.server.pid is not None
    with _frozen(world.server.pid):
        began_at = time.monotonic()
        sent = 0
        while time.monotonic() - began_at < outage_sec:
            if sent < SCHEDULES * (time.monotonic() - began_at) / FIRES_EACH_SEC:
                world.stack.send("EnqueueFunction", _fire(sent))
                sent += 1
            time.sleep(0.05)
    answered_at = time.monotonic()
    tasks = world.server.tidemill["tasks"]
    done = {"payload.fired": {"$exists": True}, "status": "done"}
    wait_until(lambda: tasks.count_documents(done) >= sent, within_sec=RECOVERY_SEC, what=f"{sent} tasks done")
    recovered_sec = time.monotonic() - answered_at
    wait_until(lambda: not _count_messages(world, "EnqueueRetriesUrl"), within_sec=RECOVERY_SEC, what="an empty queue")
    fired = [document["payload"]["fired"] for document in tasks.find({"payload.fired": {"$exists": True}})]
    lost, twice = set(range(sent)) - set(fired), len(fired) - len(set(fired))
    assert not lost, f"lost: {sorted(lost)}"
    assert twice == 0, f"enqueued twice: {twice}"
    assert _count_messages(world, "EnqueueFailuresUrl") == 0, "messages in EnqueueFailuresUrl"
    given_up = sum(line.get("message") == "failed" for line in world.read_log("EnqueueFunction"))
    return (
        f"{sent} times of {SCHEDULES} schedules in {outage_sec:.0f} s, {given_up} tries failed; "
        f"all run {recovered_sec:.0f} s after the end: 0 lost, 0 twice"
    )


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    """Let a MongoDB answer nothing for the block: it takes connections, and no command comes back."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _fire(number: int) -> dict[str, Any]:
    """Return what EventBridge Scheduler sends for one time of a schedule."""
    schedule = f"arn:aws:scheduler:{REGION}:000000000000:schedule/default/every-{number % SCHEDULES}"
    return {
        "tasks": [{"name": "noop", "payload": {"fired": number}}],
        "occurrence": {"schedule": schedule, "at": datetime.now(UTC).isoformat(timespec="milliseconds")},
    }


def _count_messages(world: World, output: str) -> int:
    """Return how many messages a queue holds, whoever is reading them."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = world.stack.client("sqs").get_queue_attributes(QueueUrl=world.stack.outputs[output], AttributeNames=names)
    return sum(int(answer["Attributes"][name]) for name in names)
