"""The whole machine: after its last step everything is brought to rest, and has to be where it belongs."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import rule
from pymongo.database import Database

from tidemill.model import LANES, Lease
from tidemill.store.scan import Scan
from tools.chaos.invariants import broken
from tools.chaos.model.base import PICK
from tools.chaos.model.meddling import Meddling
from tools.chaos.model.moves import INSTEAD, MOVES, NAMES

DAY: Final = timedelta(days=1)
ROUNDS: Final = 12
"""So many days are enough for whatever waits."""

OF_ITS_FATE: Final = ("nowhere", "will ever see it", "is still", "was not moved", "never ended")
"""What has to be said of a task whatever people have made of it."""


class Machine(Meddling):
    """All rules together."""

    @rule(what=st.sampled_from(NAMES), a=PICK, b=PICK, c=PICK, d=PICK)
    def then(self, what: str, a: int, b: int, c: int, d: int) -> None:
        """Go on."""
        if time.monotonic() < self.until:
            name = next(one for one in (what, *INSTEAD) if MOVES[one].when(self))
            self.count(f"rule {name}")
            with self.noting_what_breaks():
                MOVES[name].do(self, a, b, c, d)

    def teardown(self) -> None:
        """Bring everything to rest, unless something broke."""
        if not self.is_broken and time.monotonic() < self.until:
            with self.noting_what_breaks():
                self._come_to_rest()
            self._count_the_tasks()

    def _come_to_rest(self) -> None:
        changed = sorted(self.paused | self.without_retries)
        self.paused.clear()
        self.without_retries.clear()
        for queue in changed:
            self.set_options(queue)
        for _ in range(ROUNDS):
            self.step(DAY)
            self.alone(self.a_reclaim(3))
            self.alone(self.an_archive())
            if not any(one.get("status") in {"pending", "processing", "failed"} for one in self.world.tasks.values()):
                break
            self._finish_what_is_due()
        accepted = self.accepted - self.removed - self.purged
        said = broken(self.db, accepted=accepted, now=self.clock.now(), at_rest=True, edited=self.edited)
        unwell = [one for one in said if not self._is_of_hands(one)]
        waiting = [f"{one} still waits" for one, it in self.world.tasks.items() if it.get("status") == "pending"]
        self.expect("; ".join([*unwell, *waiting]) or None)

    def _is_of_hands(self, sentence: str) -> bool:
        """Tell whether *sentence* is of what a person did, and not of what became of it."""
        named = {one for one in self.edited if repr(one) in sentence}
        return bool(named) and (bool(named & self.reused) or not any(one in sentence for one in OF_ITS_FATE))

    def _finish_what_is_due(self) -> None:
        for queue in sorted({one["queue"] for one in self.world.tasks.values() if isinstance(one.get("queue"), str)}):
            lease = Lease(token=uuid.uuid4().hex, owner="Z", expires_at=self.clock.now() + DAY / 2)
            self.held.clear()
            self.alone(self.claim_of(Scan(queue=queue, lanes=LANES), lease, many=200))
            if self.held:
                self.alone(self.a_settling(0, 0, many=200, is_same=True))

    def _count_the_tasks(self) -> None:
        """Count where they are; what a person has put under the id of one is none."""
        died = {key[0] for key in self.world.letters} | self.purged
        known = self.accepted - self.removed - self.reused
        for task_id in known:
            status = self.world.tasks.get(task_id, {}).get("status")
            place = status if status in {"done", "cancelled"} else "dead" if task_id in died else "lost"
            type(self).ended[place] += 1
        type(self).ended["accepted"] += len(known)
        type(self).ended["examples"] += 1


def machine(db: Database[Any]) -> type[Machine]:
    """Return a machine on *db*, which nobody else may use."""
    return type("Machine", (Machine,), {"db": property(lambda _: db), "did": Counter(), "ended": Counter()})
