"""Rules of those that hold claims, or believe that they do: settle, release, extend; in time, late and repeatedly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final

from tidemill.model import Cancelled, Failed, Failure, Malformed, Outcome, Retried, Run, Snoozed, Succeeded, Task
from tidemill.policy.scheduling import Limits, Release, Start, admit
from tidemill.store import claims, settle
from tidemill.store.settle import Settlement, SettleResult
from tools.chaos.model import living
from tools.chaos.model.actions import Action
from tools.chaos.model.base import picked
from tools.chaos.model.claiming import Claiming
from tools.chaos.model.executing import NAMES, admitted, retries_of
from tools.chaos.model.world import World, changed, wrong

WAITS: Final = tuple(timedelta(seconds=seconds) for seconds in (10, 0.1, 60, 3600))
SECOND: Final = timedelta(seconds=1)


class Settling(Claiming):
    """Claims come to their end."""

    def __init__(self) -> None:
        super().__init__()
        self.over: list[Settlement] = []

    def settle(self, a: int, b: int) -> None:
        """Settle one claim."""
        self.alone(self.a_settling(a, b, many=1))

    def settle_many(self, a: int, b: int, many: int) -> None:
        """Settle several at once, each in its own way."""
        self.alone(self.a_settling(a, b, many=2 + many % 8))

    def succeed_together(self, a: int, many: int) -> None:
        """Settle several at once as done."""
        self.alone(self.a_settling(a, 0, many=5 + many % 4, is_same=True))

    def settle_once_more(self, a: int, many: int) -> None:
        """Repeat settles."""
        some = self.over[a % max(len(self.over), 1) :][: 1 + many % 3]
        self.alone(self._settles(some, "once more"))

    def release(self, a: int, many: int) -> None:
        """Give claims back."""
        self.alone(self.a_release(a, many))

    def extend(self, a: int, many: int) -> None:
        """Extend leases."""
        self.alone(self.an_extension(a, many))

    def admit(self, a: int) -> None:
        """Decide whether a claimed task starts; settle it if not."""
        task = picked(self.held, a)
        if not isinstance(task, Task) or not self._is_live(task) or wrong(self.world.tasks[task.id]):
            return
        now, remaining = self.clock.now(), timedelta(seconds=20 + 20 * (a % 2))
        verdict = admit(task, _limits(task), now=now, remaining=remaining)
        as_read = changed(self.world.tasks[task.id], cancel_requested_at=task.cancel_requested_at)
        self.count(f"admission: {type(verdict).__name__}")
        self._agree(
            admitted({**as_read, **_own(task)}, now=now), None if isinstance(verdict, Start | Release) else verdict
        )
        if not isinstance(verdict, Start | Release):
            self.alone(self._settles([Settlement(task=task, outcome=verdict)], "as it was not admitted"))

    def a_settling(self, a: int, b: int, *, many: int, is_same: bool = False) -> Action:
        """Return the settling of *many* claims at once, also of those that were lost; *is_same* has all succeed."""
        some = self._some_held(a, many)
        return self._settles([self._settlement(one, 0 if is_same else b + n) for n, one in enumerate(some)], "")

    def a_release(self, a: int, many: int) -> Action:
        """Return the giving back of claims that never started."""
        some = [one for one in self._some_held(a, 1 + many % 3) if isinstance(one, Task)]
        pairs, now = _pairs(some), self.clock.now()

        def agrees(count: int, before: World, _: World) -> str | None:
            wanted = sum(living.token_of(before.tasks.get(one)) == token for one, token in set(pairs))
            self.count("released", wanted)
            self.count("released late", len(pairs) - wanted)
            return None if count == wanted else f"a release gave {count} back, and not {wanted}"

        return Action(
            kind="release",
            name=f"release {len(some)}",
            do=lambda: claims.release(self.tasks, some, now=now),
            steps=lambda world: [living.released(world, pairs, now=now)],
            agrees=agrees,
        )

    def an_extension(self, a: int, many: int) -> Action:
        """Return the extension of leases, of which some may be lost."""
        some = [one for one in self._some_held(a, 1 + many % 4) if isinstance(one, Task)]
        pairs, until = _pairs(some), self.clock.now() + WAITS[many % 4]

        def agrees(lost: Sequence[Task], before: World, _: World) -> str | None:
            wanted = [one.id for one in some if not self._is_live(one, before)]
            self.count("extended", len(some) - len(wanted))
            self.count("extended late", len(wanted))
            return (
                None if [one.id for one in lost] == wanted else f"an extension tells of {lost} lost, and not {wanted}"
            )

        return Action(
            kind="extend",
            name=f"extend {len(some)}",
            do=lambda: claims.extend(self.tasks, some, until=until),
            steps=lambda world: [living.extended(world, pairs, until=until)],
            agrees=agrees,
        )

    def _some_held(self, a: int, many: int) -> list[Task | Malformed]:
        return self.held[a % max(len(self.held), 1) :][:many]

    def _settles(self, some: Sequence[Settlement], how: str) -> Action:
        now = self.clock.now()

        def agrees(verdict: SettleResult, before: World, after: World) -> str | None:
            mine = [one for one in some if living.is_held(before, one) or living.is_known(after, one)]
            self.count("settled", len([one for one in some if living.is_held(before, one)]))
            self.count("settled late", len(some) - len(mine))
            self.count("settled repeatedly", len([one for one in some if living.is_known(before, one)]))
            if [id(one.task) for one in verdict.settled] != [id(one.task) for one in mine] or verdict.stuck:
                return (
                    f"a settle says {len(verdict.settled)} settled, {len(verdict.lost)} lost, and {len(mine)} were held"
                )
            return None

        def then(_: SettleResult) -> None:
            self.over = [*self.over, *some][-20:]
            self.held = [one for one in self.held if not any(one is two.task for two in some)] + [
                one.task for one in some[:1] if len(self.over) % 3 == 0
            ]

        told = ", ".join(f"{type(one.outcome).__name__} {one.task.id}" for one in some)
        return Action(
            kind="settle",
            name=f"settle {how} {told}",
            do=lambda: settle.settle(self.tasks, some, now=now),
            steps=lambda world: [living.settled(world, some, now=now)],
            agrees=agrees,
            then=then,
        )

    def _settlement(self, task: Task | Malformed, pick: int) -> Settlement:
        now = self.clock.now()
        if isinstance(task, Malformed):
            return Settlement(task=task, outcome=_failed("malformed", by_function=False, reason="malformed"))
        failure, at = Failure(message="no", code="http_503"), now + WAITS[pick % 4]
        died = Failure(message="died", code="crashed", by_function=False)
        ran = Run(started_at=now, duration=SECOND, status="failed", note="no")
        return (
            Settlement(task=task, outcome=Succeeded(result={"n": 1}), run=_run(now, "succeeded")),
            Settlement(task=task, outcome=Retried(failure=failure, next_retry_at=at), run=ran),
            Settlement(task=task, outcome=_failed("http_404"), run=ran),
            Settlement(task=task, outcome=Snoozed(until=at), run=_run(now, "succeeded")),
            Settlement(task=task, outcome=Cancelled(), run=ran),
            Settlement(task=task, outcome=Retried(failure=died, next_retry_at=at), run=ran, crashed=True),
            Settlement(task=task, outcome=Snoozed(until=at)),
            Settlement(task=task, outcome=Cancelled()),
            Settlement(task=task, outcome=Succeeded(result=None), run=_run(now, "succeeded")),
            Settlement(task=task, outcome=_failed("exhausted", reason="exhausted"), run=ran),
            Settlement(task=task, outcome=_failed("http_410"), run=ran),
            Settlement(task=task, outcome=_failed("expired", by_function=False, reason="expired")),
        )[pick % 12]

    def _is_live(self, task: Task | Malformed, world: World | None = None) -> bool:
        lease = task.lease
        return lease is not None and living.token_of((world or self.world).tasks.get(task.id)) == lease.token

    def _agree(self, wanted: Outcome | None, verdict: object) -> None:
        same = type(wanted) is type(verdict) and getattr(wanted, "reason", 0) == getattr(verdict, "reason", 0)
        self.expect(None if same else f"admitted as {verdict}, and not as {wanted}")


def _own(task: Task) -> dict[str, object]:
    """Return what of a claim was read with it, where somebody may have edited the document since."""
    return {
        "name": task.name,
        "max_retries": task.max_retries,
        "attempts": task.attempts,
        "crashes": task.crashes,
        "expires_at": task.expires_at,
        "attempt_log": [*map(asdict, task.attempt_log)],
    }


def _limits(task: Task) -> Limits:
    return Limits(
        known=task.name in NAMES,
        timeout=timedelta(seconds=25),
        max_retries=retries_of({"max_retries": task.max_retries}),
        max_timeout=timedelta(seconds=30),
        margin=timedelta(seconds=5),
    )


def _failed(code: str, *, by_function: bool = True, reason: str = "not_retryable") -> Failed:
    return Failed(failure=Failure(message="no", code=code, by_function=by_function), reason=reason)  # type: ignore[arg-type]


def _run(now: datetime, status: str) -> Run:
    return Run(started_at=now, duration=SECOND, status=status)  # type: ignore[arg-type]


def _pairs(some: Sequence[Task]) -> list[tuple[object, str]]:
    return [(one.id, one.lease.token) for one in some if one.lease is not None]
