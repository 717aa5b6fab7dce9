"""Rules of those who enqueue, cancel, hurry and pause, and of time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from tidemill import Malformed, NotDelayedError, Task, TaskNotFoundError
from tidemill.control import queues
from tidemill.errors import DuplicateKeyError
from tidemill.model import QueueOptions
from tools.chaos.model import living
from tools.chaos.model.actions import Action
from tools.chaos.model.base import QUEUES, Base, ids_in, picked
from tools.chaos.model.comparing import payload_bytes
from tools.chaos.model.living import Wanted
from tools.chaos.model.world import World

DOES: Final = ("succeed", "fail", "refuse", "snooze", "note")
KEYS: Final = ("order-1", "order-2", "order-3")
SPANS: Final = tuple(timedelta(seconds=seconds) for seconds in (1, 10, 0.001, 70, 600, 40, 3 * 3600, 5))
DELAYS: Final = (None, timedelta(seconds=5), timedelta(minutes=5))


class _Aborted(Exception):  # noqa: N818 - the caller's own
    """The caller changes its mind."""


class Asking(Base):
    """What people and programs ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[Any, Wanted] = {}

    def enqueue(self, a: int, b: int) -> None:
        """Enqueue one task."""
        self._enqueue(_wanted(a, b))

    def enqueue_keyed(self, a: int, key: int) -> None:
        """Enqueue one under a key that may be taken."""
        self._enqueue(_keyed(a, KEYS[key % 3]))

    def enqueue_many(self, a: int, b: int, many: int) -> None:
        """Enqueue several, some under keys."""
        keys = [KEYS[(a + n) % 3] if (b + n) % 3 == 0 else None for n in range(2 + many % 6)]
        wanted = [_wanted(a + n, b + n) if key is None else _keyed(b, key) for n, key in enumerate(keys)]
        self._stored(wanted, lambda: self.queue.enqueue_many([self._mapping(one) for one in wanted]))

    def enqueue_in_a_transaction(self, a: int, b: int, key: int) -> None:
        """Enqueue two in the caller's transaction, which may be aborted."""
        wanted = [_wanted(a, b), _keyed(a, KEYS[key % 3]) if key < 12 else _wanted(b, a)]
        is_aborted = key % 3 == 0

        def do() -> list[Any]:
            with self.db.client.start_session() as session, session.start_transaction():
                ids = [self._one(one, session=session) for one in wanted]
                if is_aborted:
                    raise _Aborted
            return ids

        if is_aborted:
            self.tell("enqueue in a transaction that is aborted")
            with suppress(_Aborted, DuplicateKeyError):
                do()
            self.count("aborted")
            self.now_is(self.world)
        else:
            self._stored(wanted, do)

    def cancel(self, a: int, b: int) -> None:
        """Cancel a task."""
        self.alone(self.a_cancellation(a, b))

    def retry_now(self, a: int) -> None:
        """Have a delayed task due now."""
        task_id, now = picked(self.world.tasks, a), self.clock.now()
        if task_id is None:
            return
        world = living.hurried(self.world, task_id, now=now)
        is_refused = False
        self.tell(f"hurry {task_id}")
        try:
            self.queue.retry_now(task_id)
        except NotDelayedError:
            is_refused = True
        self.expect("a retry now tells what is not so" if is_refused == (world is not self.world) else None)
        self.count("hurried", int(not is_refused))
        self.now_is(world)

    def pause_or_resume(self, a: int) -> None:
        """Pause a queue, or resume it."""
        queue = QUEUES[a % 2]
        self.paused ^= {queue}
        self.set_options(queue)
        self.count("paused or resumed")

    def hold_retries(self, a: int) -> None:
        """Cap the retries of a queue at none, or remove the cap."""
        queue = QUEUES[a % 2]
        self.without_retries ^= {queue}
        self.set_options(queue)
        self.count("retries held or freed")

    def time_passes(self, a: int) -> None:
        """Let the clock go on."""
        self.step(SPANS[a % len(SPANS)])

    def the_clock_is_set_back(self, a: int) -> None:
        """Set the clock back."""
        self.step(-SPANS[a % len(SPANS)])
        self.count("clock back")

    def a_cancellation(self, a: int, b: int) -> Action:
        """Return the cancellation of any task there ever was."""
        now, is_forced = self.clock.now(), b % 3 == 0
        known = [*self.world.tasks, *(key[0] for key in self.world.letters)]
        running = [one for one, it in self.world.tasks.items() if living.token_of(it) is not None]
        task_id = picked(running if running and b % 2 else known, a)

        def do() -> Task | Malformed | None:
            with suppress(TaskNotFoundError):
                return self.queue.cancel(task_id, force=is_forced)
            return None

        def agrees(task: Task | Malformed | None, before: World, after: World) -> str | None:
            self.count("cancelled", int(before is not after and before.tasks.get(task_id) != after.tasks.get(task_id)))
            self.count("forced", int(is_forced and living.token_of(before.tasks.get(task_id)) is not None))
            if task is None:
                return f"{task_id} is not found" if task_id in ids_in(before) & ids_in(after) else None
            if task_id not in ids_in(before) | ids_in(after):
                return f"{task_id} is told, which is nowhere"
            wanted = after.tasks[task_id].get("status") if task_id in after.tasks else "failed"
            return None if task.status == wanted else f"cancelling {task_id}, which is {wanted}, tells of {task.status}"

        return Action(
            kind="cancel",
            name=f"cancel {task_id}{', by force' * is_forced}",
            do=do,
            steps=lambda world: [living.cancelled(world, task_id, force=is_forced, now=now)],
            agrees=agrees,
        )

    def set_options(self, queue: str) -> None:
        """Store whether *queue* is paused and whether its retries are held; executors obey."""
        cap = 0 if queue in self.without_retries else None
        options = QueueOptions(paused=queue in self.paused, max_in_flight_retries=cap)
        queues.declare_queue(self.db, queue, now=self.clock.now())
        queues.change_queue(self.db, queue, options, now=self.clock.now())

    def _mapping(self, wanted: Wanted) -> dict[str, Any]:
        return _fields(wanted, self.clock.now()) | {"delay_sec": wanted.delay and wanted.delay.total_seconds()}

    def _enqueue(self, wanted: Wanted) -> None:
        self._stored([wanted], lambda: [self._one(wanted)])

    def _one(self, wanted: Wanted, **options: Any) -> Any:
        return self.queue.enqueue(**_fields(wanted, self.clock.now()), delay=wanted.delay, **options)

    def _stored(self, wanted: Sequence[Wanted], do: Any) -> None:
        holders = {key: living.holder(self.world, key) for key in KEYS}
        self.tell(f"enqueue {[(one.name, one.queue, one.key) for one in wanted]}")
        try:
            ids = do()
        except DuplicateKeyError:
            self.count("conflict of keys")
            self.expect(None if self._conflicts(wanted) else "an enqueue tells of a conflict where there is none")
            self.now_is(self.world)
            return
        self.expect("a conflict of keys was not told" if self._conflicts(wanted) else None)
        world = self.world
        for task_id, one in zip(ids, wanted, strict=True):
            holder = (holders.get(one.key) or living.holder(world, one.key)) if one.key is not None else None
            if holder is not None:
                self.count("repeated enqueue")
                self.expect(
                    None if holder["_id"] == task_id else f"{one.key} is held by {holder['_id']}, told is {task_id}"
                )
                continue
            world = living.enqueued(world, task_id, one, now=self.clock.now())
            self.accepted.add(task_id)
            self.requests[task_id] = one
            self.eyes.payloads[task_id] = payload_bytes(one.payload)
            self.count("enqueued")
        self.now_is(world)

    def _conflicts(self, wanted: Sequence[Wanted]) -> bool:
        """Tell whether a key is held by another request than is wanted under it."""
        asked: dict[str, Wanted] = {}
        for one in wanted:
            if one.key is None:
                continue
            first = asked.setdefault(one.key, one)
            holder = living.holder(self.world, one.key)
            if first != one or (holder is not None and self.requests.get(holder["_id"]) != one):
                return True
        return False


def _wanted(a: int, b: int) -> Wanted:
    return Wanted(
        payload={"does": DOES[b % 5], "n": a, "deep": {"z": [1, 2.5, None], "a": "\u00fc"}},
        name=("told", "noop", "told", "told", "nobody")[a % 5],
        queue=QUEUES[(a // 5) % 2],
        priority=(0, 0, 7, -3)[b % 4],
        delay=DELAYS[(b // 4) % 3],
        lives_for=timedelta(minutes=10) if a % 4 == 3 else None,
        max_retries=(None, 0, 1)[(a // 2) % 3],
    )


def _keyed(a: int, key: str) -> Wanted:
    """Return one of two requests under *key*."""
    return Wanted(payload={"n": 0}, name="told", priority=a % 6 // 5, key=key)


def _fields(wanted: Wanted, now: datetime) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "payload": wanted.payload,
        "queue": wanted.queue,
        "priority": wanted.priority,
        "expires_at": wanted.lives_for and now + wanted.lives_for,
        "max_retries": wanted.max_retries,
        "idempotency_key": wanted.key,
    }
