"""From the claim to the start: what waits for a slot, what may start, and what is given back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidemill.admission import Release, Start, admit
from tidemill.executor.giving_back import GivingBack
from tidemill.executor.held import Held
from tidemill.executor.life import Life
from tidemill.executor.outcomes import malformed
from tidemill.executor.runtime import Runtime
from tidemill.executor.settler import Settler
from tidemill.model import Malformed, Task, TaskId
from tidemill.settlement import Settlement
from tidemill.slots import Slots


class Starting:
    """Brings claimed tasks into *slots*, in the order of their claims, as far as admission lets them."""

    def __init__(
        self, runtime: Runtime, *, life: Life, held: Held, slots: Slots, settler: Settler, giving_back: GivingBack
    ) -> None:
        self._runtime = runtime
        self._life = life
        self._held = held
        self._slots = slots
        self._settler = settler
        self._giving_back = giving_back
        self._waiting: deque[Task] = deque()
        self._shunned: list[tuple[float, TaskId]] = []

    @property
    def waiting(self) -> Sequence[Task]:
        """What is claimed and has no slot yet."""
        return self._waiting

    def take(self, claimed: Sequence[Task | Malformed]) -> None:
        """Take over what was claimed."""
        self._held.add(claimed)
        for task in claimed:
            if isinstance(task, Malformed):
                self._settler.add(Settlement(task=task, outcome=malformed(task)))
            else:
                self._waiting.append(task)

    def fill(self) -> None:
        """Start what waits as far as there are slots, and give back what cannot finish any more."""
        released: list[Task] = []
        while self._waiting and (self._slots.free or not self._life.left_for_tasks()):
            task = self._waiting.popleft()
            if not self._starts(task):
                released.append(task)
        self.give_back(released)

    def give_back(self, tasks: Sequence[Task]) -> None:
        """Give back *tasks*, unstarted, and leave them to others from now on."""
        if not tasks:
            return
        until = self._runtime.monotonic() + self._life.shun_sec
        self._shunned += [(until, task.id) for task in tasks]
        self._held.drop(tasks)
        self._giving_back.release(tasks)

    def avoided(self) -> list[TaskId]:
        """Return what this execution must not claim: what it gave back, and what still runs though it timed out."""
        now = self._runtime.monotonic()
        self._shunned = [one for one in self._shunned if one[0] > now]
        return [*(task_id for _, task_id in self._shunned), *self._slots.zombies()]

    def _runs(self, task_id: TaskId) -> bool:
        """Tell whether this process runs the function of that task already: one it was not let finish."""
        return task_id in self._slots.zombies() or any(one.task.id == task_id for one in self._slots.running)

    def _starts(self, task: Task) -> bool:
        """Start *task*, or settle it without a run; false where it is to be given back."""
        if task not in self._held or self._runs(task.id):
            return False
        now, limits = self._runtime.clock.now(), self._runtime.limits(task)
        admission = admit(task, limits, now=now, remaining=self._life.left_for_tasks())
        task_type = self._runtime.registry.get(task.name)
        match admission:
            case Start(timeout=timeout) if task_type is not None:
                is_last = task.attempts > limits.max_retries
                self._slots.start(task, task_type, timeout=timeout, is_last_attempt=is_last, now=now)
            case Start() | Release():
                return False
            case _:
                self._settler.add(Settlement(task=task, outcome=admission))
        return True
