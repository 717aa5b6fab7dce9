"""Pending tasks that no claim will ever take: past their expiry, or no tasks as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidemill.adoption import missing_fields
from tidemill.documents import decode
from tidemill.model import Malformed, TaskId
from tidemill.reclaim.keeper import BATCH, Keeper
from tidemill.store import sweeps


class Strays:
    """Tends to them; each method works off one batch and tells whether more may be there.

    A batch that was not changed to the last document is left alone in the next: each is tried once in a run.
    """

    def __init__(self, keeper: Keeper, report: Counter[str]) -> None:
        self._keeper = keeper
        self._report = report
        self._in_vain: list[TaskId] = []

    def expire(self) -> bool:
        """Fail what was not started before its ``expires_at``."""
        now = self._keeper.clock.now()
        found = sweeps.expired(self._keeper.tasks, now=now, limit=BATCH, but=self._in_vain)
        written = sweeps.expire(self._keeper.tasks, found, now=now)
        self._report["expired"] += written.changed
        return self._tried(found, changed=written.changed, refused=written.refused)

    def adopt(self) -> bool:
        """Complete documents whose meaning is plain, and fail the others as they are."""
        now = self._keeper.clock.now()
        found = sweeps.strays(self._keeper.tasks, limit=BATCH, but=self._in_vain)
        verdicts = [(decode(raw)["_id"], missing_fields(raw, now=now, adopt_as=self._keeper.adopt_as)) for raw in found]
        hopeless = [verdict for _, verdict in verdicts if isinstance(verdict, Malformed)]
        adoptions = [(task_id, verdict) for task_id, verdict in verdicts if not isinstance(verdict, Malformed)]
        quarantined = sweeps.quarantine_all(self._keeper.tasks, hopeless, now=now)
        self._report["quarantined"] += quarantined.changed
        adopted = sweeps.adopt(self._keeper.tasks, adoptions)
        self._report["adopted"] += adopted.changed
        ids = [task_id for task_id, _ in verdicts]
        changed, refused = quarantined.changed + adopted.changed, quarantined.refused + adopted.refused
        return self._tried(ids, changed=changed, refused=refused)

    def _tried(self, ids: Sequence[TaskId], *, changed: int, refused: int) -> bool:
        self._report["stuck"] += refused
        if changed < len(ids):
            self._in_vain += ids
        return len(ids) == BATCH
