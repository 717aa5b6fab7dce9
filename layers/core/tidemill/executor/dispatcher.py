"""The dispatcher: it owns the tasks that an execution has leased and not settled."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from tidemill.documents import ClaimKey, claim_key, id_key
from tidemill.executor.context import ExecutionContext
from tidemill.executor.lifetime import claim_reserve
from tidemill.executor.outcomes import Settler
from tidemill.executor.retry_permits import RetryPermits
from tidemill.model import Cancelled, Malformed, Snoozed, Task, TaskId
from tidemill.policy.scheduling import Release, Start, admit, fail_malformed
from tidemill.runner.thread_pool import ThreadPool
from tidemill.runner.worker_thread import RunningTask
from tidemill.store import claims
from tidemill.store.settle import Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    """Number of tasks that became pending again. Complete unless a search for unconfirmed claims has failed."""

    released: int = 0
    is_complete: bool = True


class Dispatcher:
    """Starts claimed tasks in the order of their claims, and releases tasks that cannot start here in time.

    It owns every leased task until the task is settled, released or lost, by id *and* token: a retry that is due at
    once may be claimed again before its settlement is confirmed. A release that fails is repeated; at the end it is
    left to the lease, which expires.

    Functions with ``isolate`` run on at most *core_count* cores at a time. Their tasks wait for a core beside the
    others, and do not keep later tasks from the slots. After a moment they are released, and offered to other executors
    until a core is free here.
    """

    def __init__(
        self, context: ExecutionContext, *, pool: ThreadPool, settler: Settler, permits: RetryPermits, core_count: int
    ) -> None:
        self._context = context
        self._pool = pool
        self._core_count = core_count
        self._settler = settler
        self._permits = permits
        self._leased: dict[ClaimKey, Task | Malformed] = {}
        self._waiting: deque[tuple[float, Task]] = deque()
        self._without_core: deque[tuple[float, Task]] = deque()
        self._offered_without_core: list[tuple[float, Task]] = []
        self._isolates_again_at = -math.inf
        self._cooling_down: list[tuple[float, TaskId]] = []
        self._offered: list[tuple[float, TaskId]] = []
        self._unreleased: list[Task] = []
        self._unconfirmed: list[str] = []
        self._searched_count = 0
        self._next_recovery_at = 0.0

    def find_leased(self) -> Sequence[Task]:
        """Return the valid tasks under a lease: waiting, running, or ended and not settled."""
        return [task for task in self._leased.values() if isinstance(task, Task)]

    @property
    def waiting(self) -> Sequence[Task]:
        """The claimed tasks that have no slot yet, or no core."""
        return [task for _, task in (*self._without_core, *self._waiting)]

    @property
    def waiting_count(self) -> int:
        """The number of claimed tasks that have no slot yet. Tasks without a core leave the slots to others."""
        return len(self._waiting)

    @property
    def has_waiting(self) -> bool:
        """True if a claimed task has no slot yet, or no core."""
        return bool(self._waiting or self._without_core)

    @property
    def lacks_cores(self) -> bool:
        """True if a task waits for a core here, or was released because none is free."""
        return bool(self._without_core or self._offered_without_core)

    def add(self, claimed: Iterable[Task | Malformed], *, unconfirmed_tokens: Sequence[str] = ()) -> None:
        """Add claimed tasks; malformed documents are settled at once.

        Under *unconfirmed_tokens* tasks may be leased that no read returned. The next recovery releases them.
        """
        for task in claimed:
            self._leased[claim_key(task)] = task
            if isinstance(task, Malformed):
                self._settler.add(Settlement(task=task, outcome=fail_malformed(task)))
            else:
                self._waiting.append((self._context.monotonic(), task))
        if unconfirmed_tokens:
            self._unconfirmed += unconfirmed_tokens
            self._next_recovery_at = 0.0

    def forget(self, tasks: Iterable[Task | Malformed]) -> None:
        """Forget tasks whose leases have ended: settled, released or lost."""
        for task in tasks:
            self._leased.pop(claim_key(task), None)

    def fill_slots(self) -> int:
        """Start waiting tasks while slots and cores are free. Release tasks that cannot finish or wait too long.

        Return the number of tasks that have found a slot and no core for the first time.
        """
        if not self.has_waiting:
            return 0
        now, released, lacking = self._context.now(), list[Task](), list[tuple[float, Task]]()
        running = set(map(id_key, self._pool.abandoned_task_ids()))
        running.update(id_key(run.task.id) for run in self._pool.running)
        while self._without_core and self._pool.free and self._has_free_core():
            self._waiting.appendleft(self._without_core.popleft())
            self._start_first(running=running, now=now, released=released)
        while self._waiting and (self._pool.free or not self._context.lifetime.remaining_for_tasks()):
            if self._lacks_core(self._waiting[0][1]):
                lacking.append(self._waiting.popleft())
            else:
                self._start_first(running=running, now=now, released=released)
        self.release(released)
        self._hold_without_core(lacking)
        self._release_blocked(now)
        return len(lacking)

    @property
    def has_unused_core(self) -> bool:
        """True if a core is free and no task waits for it."""
        return not self._without_core and self._has_free_core()

    def withdraw_offers_for_core(self) -> Sequence[Task]:
        """Allow this execution to claim the tasks again that it released for want of a core.

        Return these tasks: they are pending, perhaps behind the position of a scan.
        """
        tasks = [task for _, task in self._offered_without_core]
        self._offered_without_core.clear()
        return tasks

    def cancel(self, requested: Collection[TaskId]) -> None:
        """Settle waiting tasks whose cancellation was requested."""
        if not requested:
            return
        keys = set(map(id_key, requested))
        for task in self.waiting:
            if id_key(task.id) in keys:
                self._settler.add(Settlement(task=task, outcome=Cancelled()))
        self._waiting = deque(entry for entry in self._waiting if id_key(entry[1].id) not in keys)
        self._without_core = deque(entry for entry in self._without_core if id_key(entry[1].id) not in keys)

    def postpone(self, running: Sequence[RunningTask]) -> None:
        """Delay tasks whose process could not be started, and all isolated tasks for some seconds."""
        if running:
            self._isolates_again_at = self._context.monotonic() + self._context.timing.process_retry_sec
        for run in running:
            self._postpone(run.task)

    def release(self, tasks: Sequence[Task]) -> None:
        """Release *tasks*, which have not started, and leave them to other executors for a while."""
        if tasks:
            self._cooling_down += self._expire_after(self._context.lifetime.cooldown_sec, tasks)
            self._release_now(tasks)

    def release_waiting(self) -> None:
        """Release all tasks that have no slot yet, or no core."""
        self.release(self.waiting)
        self._waiting.clear()
        self._without_core.clear()

    def find_avoided_ids(self) -> list[TaskId]:
        """Return the ids that this execution must not claim: released tasks, and abandoned ones that still run."""
        now = self._context.monotonic()
        self._cooling_down = [entry for entry in self._cooling_down if entry[0] > now]
        self._offered = [entry for entry in self._offered if entry[0] > now]
        self._offered_without_core = [entry for entry in self._offered_without_core if entry[0] > now]
        return [
            *(task_id for _, task_id in (*self._cooling_down, *self._offered)),
            *(task.id for _, task in self._offered_without_core),
            *self._pool.abandoned_task_ids(),
        ]

    @property
    def has_released(self) -> bool:
        """True if released tasks may be waiting for other executors."""
        return bool(self._cooling_down or self._offered or self._offered_without_core)

    def withdraw_offers(self) -> bool:
        """Allow this execution to claim offered tasks again. Return whether there were any."""
        had_offers = bool(self._offered or self._offered_without_core)
        self._offered.clear()
        self._offered_without_core.clear()
        return had_offers

    @property
    def is_recovery_due(self) -> bool:
        """True if a recovery has something to do, and the last one was long enough ago."""
        return bool(self._unreleased or self._unconfirmed) and self._context.monotonic() >= self._next_recovery_at

    def recover(self) -> RecoveryResult:
        """Repeat failed releases, and release the tasks of unconfirmed claims that have not started.

        A claim may take effect late, so each token is searched twice.
        """
        self._next_recovery_at = self._context.monotonic() + self._context.timing.recovery_interval_sec
        released = self._repeat_releases()
        if not self._unconfirmed:
            return RecoveryResult(released=released)
        search = partial(
            claims.release_unconfirmed,
            self._context.tasks,
            owner=self._context.options.owner,
            tokens=self._unconfirmed,
            started=[task.id for task in self._leased.values()],
            now=self._context.now(),
        )
        found = self._context.attempt(search, default=None)
        if found is None:
            return RecoveryResult(released=released, is_complete=False)
        self._context.report["released"] += found
        self._unconfirmed = self._unconfirmed[self._searched_count :]
        self._searched_count = len(self._unconfirmed)
        return RecoveryResult(released=released + found)

    def _start(self, task: Task, *, running: set[bytes], now: datetime) -> bool:
        """Start *task*, or settle it without a run. Return false if the caller must release it.

        *running* has the keys of the tasks that run in this process, abandoned ones included.
        """
        if claim_key(task) not in self._leased or id_key(task.id) in running:
            return False
        runtime = self._context.runtime
        task_type = runtime.registry.get(task.name)
        is_isolated = task_type is not None and self._pool.needs_isolation(task, task_type)
        if is_isolated and self._context.monotonic() < self._isolates_again_at:
            self._postpone(task)
            return True
        limits = runtime.limits(task)
        admission = admit(task, limits, now=now, remaining=self._context.lifetime.remaining_for_tasks())
        match admission:
            case Start(timeout=timeout) if task_type is not None:
                is_last = task.attempts > limits.max_retries
                self._pool.start(task, task_type, timeout=timeout, is_last_attempt=is_last, now=now)
                running.add(id_key(task.id))
            case Start() | Release():
                return False
            case _:
                self._settler.add(Settlement(task=task, outcome=admission))
        return True

    def _start_first(self, *, running: set[bytes], now: datetime, released: list[Task]) -> None:
        """Start the first task that waits for a slot, or add it to *released*."""
        _, task = self._waiting.popleft()
        if not self._start(task, running=running, now=now):
            released.append(task)

    def _lacks_core(self, task: Task) -> bool:
        """Return whether *task* needs a core and none is free. A task isolated after a crash needs none."""
        return self._needs_core(task) and not self._has_free_core()

    def _needs_core(self, task: Task) -> bool:
        runtime = self._context.runtime
        task_type = runtime.registry.get(task.name)
        return runtime.isolation is not None and task_type is not None and task_type.isolate

    def _has_free_core(self) -> bool:
        return sum(self._needs_core(run.task) for run in self._pool.running) < self._core_count

    def _hold_without_core(self, lacking: Sequence[tuple[float, Task]]) -> None:
        """Hold tasks for the next free core, at most one a slot. Release the rest, and all once some were released.

        So a task that was released goes before the later ones.
        """
        room = 0 if self._offered_without_core else self._pool.size - len(self._without_core)
        self._without_core += lacking[:room]
        self._offer_without_core([task for _, task in lacking[room:]])

    def _offer_without_core(self, tasks: Sequence[Task]) -> None:
        if tasks:
            until = self._context.monotonic() + self._context.timing.core_offer_sec
            self._offered_without_core += [(until, task) for task in tasks]
            self._release_now(tasks)

    def _release_blocked(self, now: datetime) -> None:
        """Release tasks that wait behind slow functions, and tasks that can no longer finish in time."""
        slot_wait_sec = self._context.timing.slot_wait_sec
        self._waiting, blocked = self._split_blocked(self._waiting, now=now)
        if blocked:
            self._offered += self._expire_after(slot_wait_sec, blocked)
            self._release_now(blocked)
        self._without_core, blocked = self._split_blocked(self._without_core, now=now)
        self._offer_without_core(blocked)

    def _split_blocked(
        self, waiting: deque[tuple[float, Task]], *, now: datetime
    ) -> tuple[deque[tuple[float, Task]], list[Task]]:
        """Return the tasks that may wait on, and those that waited too long. Release those that cannot finish."""
        runtime, slot_wait_sec = self._context.runtime, self._context.timing.slot_wait_sec
        at, left = self._context.monotonic(), self._context.lifetime.remaining_for_tasks()
        has_time = left >= claim_reserve(runtime.settings)
        if not waiting or (has_time and at - waiting[0][0] <= slot_wait_sec):
            return waiting, []
        kept: deque[tuple[float, Task]] = deque()
        blocked, late = list[Task](), list[Task]()
        for since, task in waiting:
            if isinstance(admit(task, runtime.limits(task), now=now, remaining=left), Release):
                late.append(task)
            elif at - since > slot_wait_sec:
                blocked.append(task)
            else:
                kept.append((since, task))
        self.release(late)
        return kept, blocked

    def _expire_after(self, cooldown_sec: float, tasks: Sequence[Task]) -> list[tuple[float, TaskId]]:
        until = self._context.monotonic() + cooldown_sec
        return [(until, task.id) for task in tasks]

    def _release_now(self, tasks: Sequence[Task]) -> None:
        self.forget(tasks)
        self._unreleased += tasks
        self._repeat_releases()

    def _repeat_releases(self) -> int:
        """Release every task that is to be released. Return their number, 0 after an error."""
        if not self._unreleased:
            return 0
        now = self._context.now()
        release = partial(claims.release, self._context.tasks, self._unreleased, now=now)
        released = self._context.attempt(release, default=None)
        if released is None:
            return 0
        self._context.report["released"] += released
        self._permits.release_ended(self._unreleased, now=now)
        self._unreleased.clear()
        return released

    def _postpone(self, task: Task) -> None:
        timing = self._context.timing
        delay_sec = self._context.runtime.rng.uniform(timing.shortest_postpone_sec, timing.longest_postpone_sec)
        until = self._context.now() + timedelta(seconds=delay_sec)
        self._settler.add(Settlement(task=task, outcome=Snoozed(until=until)))
