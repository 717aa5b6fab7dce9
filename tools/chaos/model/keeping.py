"""Rules of the housekeeping: reclaim, archive, export, redrive and purge."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from tests.shelves import DOWN, TOO_LARGE, Shelf
from tidemill.control.queues import OptionsReader
from tidemill.dead_letters.archive import ArchiveContext, Report, archive
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.export import export
from tidemill.dead_letters.export_format import ExportResult
from tidemill.dead_letters.redrive import RedriveContext, RedriveRequest, RedriveResult, redrive
from tidemill.dead_letters.selection import DeadLetterFilter, PurgeResult, purge
from tidemill.policy.retry import resolve_policy
from tidemill.reclaim import ReclaimContext, reclaim
from tools.chaos.model import dying, living, reclaiming, returning
from tools.chaos.model.actions import Action
from tools.chaos.model.asking import Asking
from tools.chaos.model.base import EVER, OWNERS, picked
from tools.chaos.model.claiming import POLICY
from tools.chaos.model.executing import NAMES
from tools.chaos.model.settling import Settling
from tools.chaos.model.world import LetterKey, World


class Half(random.Random):
    """Always draws one half, so that the model knows every wait."""

    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        return 0.5


class Keeping(Settling, Asking):
    """The ticks, and what operators have done with dead letters."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()

    def forget(self, letters: Iterable[LetterKey]) -> None:
        """Forget the objects, too: another death may have the same key."""
        for task_id, redrives in letters:
            for key in [one for one in self.shelf.objects if one.endswith(f"/{task_id}-{redrives}.json.gz")]:
                del self.shelf.objects[key]

    def reclaim(self, a: int) -> None:
        """Run reclaim."""
        self.alone(self.a_reclaim(a))

    def archive(self) -> None:
        """Run the archive."""
        self.alone(self.an_archive())

    def export(self, a: int) -> None:
        """Export dead letters."""
        self.alone(self.an_export(a))

    def redrive(self, a: int, b: int) -> None:
        """Redrive dead letters."""
        self.alone(self.a_redrive(a, b))

    def purge(self, a: int) -> None:
        """Purge dead letters."""
        self.alone(self.a_purge(a))

    def a_reclaim(self, a: int) -> Action:
        """Return a run of reclaim: after a tick, or after the death of somebody."""
        dead_owner, now = (*OWNERS, None, None)[a % 5], self.clock.now()
        reclaim_context = ReclaimContext(
            tasks=self.tasks,
            clock=self.clock,
            policy=lambda task: resolve_policy(task, registered=None, deployment=POLICY),
            options=OptionsReader(self.db).options,
            adopt_as=living.ADOPT_AS,
            rng=Half(),
        )

        def agrees(report: dict[str, int], *_: World) -> str | None:
            for name in ("reclaimed", "failed", "cancelled", "expired", "adopted", "quarantined"):
                self.count(f"reclaim: {name}", report[name])
            wrong = {name: report[name] for name in ("lost_race", "write_rejected", "errors") if report[name]}
            return f"a run of reclaim reports {wrong}" if wrong else None

        return Action(
            kind="reclaim",
            calls=11,
            name="reclaim" if dead_owner is None else f"reclaim from {dead_owner}",
            do=lambda: reclaim(reclaim_context, until=time.monotonic() + 60, dead_owner=dead_owner),
            steps=lambda world: [*reclaiming.reclaims(world, dead_owner=dead_owner, now=now)],
            agrees=agrees,
        )

    def an_archive(self) -> Action:
        """Return a run of the archive without a bucket."""
        now = self.clock.now()
        on = ArchiveContext(
            tasks=self.tasks, dead=self.dead, clock=self.clock, task_retention=returning.FORGOTTEN_AFTER
        )

        def steps(world: World) -> Sequence[World]:
            completed = [*returning.completions(world, now=now)]
            return [*completed, *dying.moves(completed[-1], now=now)]

        def agrees(report: Report, *_: World) -> str | None:
            self.count("moved", report.moved)
            self.count("moved again", report.repeated)
            self.count("redrives completed", report.redriven)
            return f"{report.stuck} tasks cannot be moved" if report.stuck else None

        return Action(
            kind="archive", calls=8, name="archive", do=lambda: archive(on, until=EVER), steps=steps, agrees=agrees
        )

    def an_export(self, a: int) -> Action:
        """Return an export: into a bucket that is well, is away, or does not take these objects."""
        now = self.clock.now()
        self.shelf.always = (None, None, DOWN, TOO_LARGE)[a % 4]

        def do() -> ExportResult:
            return export(self.dead, self.shelf.put, clock=self.clock, until=EVER, threads=1)

        def steps(world: World) -> Sequence[World]:
            open_ones = dying.unexported(world, now=now)
            if self.shelf.always is None:
                return [dying.exported(world, open_ones, now=now)]
            if self.shelf.always is DOWN:
                return [world]
            return [dying.refused(world, open_ones, why=TOO_LARGE.code, now=now)]

        def agrees(done: ExportResult, before: World, _: World) -> str | None:
            many = len(dying.unexported(before, now=now))
            told = (
                done.exported if self.shelf.always is None else done.refused if self.shelf.always is TOO_LARGE else many
            )
            self.count("exported" if self.shelf.always is None else "export failed", many)
            return None if told == many else f"an export tells of {told}, and not {many}"

        return Action(kind="export", name=f"export, {self.shelf.always}", do=do, steps=steps, agrees=agrees)

    def a_redrive(self, a: int, b: int) -> Action:
        """Return a redrive of one letter, of a task's, or of all; at most a few."""
        now, limit, drop_expiry = self.clock.now(), (100, 1, 2)[b % 3], b % 2 == 0
        chosen = picked(sorted(self.world.letters), a) if a % 3 == 0 else None
        ids = () if chosen is None else (DeadLetterId(task=chosen[0], redrives=chosen[1]),)
        on = RedriveContext(tasks=self.tasks, dead=self.dead, clock=self.clock, registered=lambda: NAMES)

        def do() -> RedriveResult:
            plan = RedriveRequest(which=DeadLetterFilter(ids=ids), drop_expiry=drop_expiry)
            return redrive(on, plan, limit=limit, dry_run=False, until=EVER)

        def late_steps(read: World, world: World) -> Sequence[World]:
            known = [key for key in _meant(read, chosen, now=now) if key in world.letters]
            keys = [key for key in known if _is_open(world, key, now=now)]
            return [*returning.redrives(world, keys, names=NAMES, drop_expiry=drop_expiry, limit=limit, now=now)]

        def agrees(done: RedriveResult, before: World, after: World) -> str | None:
            back = [key for key, one in after.letters.items() if "redriven_at" in one]
            before_ = [key for key, one in before.letters.items() if "redriven_at" in one]
            self.count("redriven", done.redriven)
            self.count("redrive refused", sum(done.refused.values()))
            told = len(back) - len(before_)
            return None if done.redriven == told else f"a redrive tells of {done.redriven}, and not {told}"

        return Action(
            kind="redrive",
            calls=9,
            name=f"redrive {chosen or 'all'}, {limit} at most",
            do=do,
            steps=lambda world: late_steps(world, world),
            late_steps=late_steps,
            agrees=agrees,
        )

    def a_purge(self, a: int) -> Action:
        """Return the purge of one letter, or of all up to a limit."""
        now, limit = self.clock.now(), (1, 1, 1, 3)[a % 4]
        chosen = picked(sorted(self.world.letters), a) if a % 2 == 0 else None
        ids = () if chosen is None else (DeadLetterId(task=chosen[0], redrives=chosen[1]),)

        def steps(world: World) -> Sequence[World]:
            free = [key for key in _meant(world, chosen, now=now) if "redrive_started_at" not in world.letters[key]]
            return [dying.purged(world, free[:limit])]

        def then(done: PurgeResult) -> None:
            self.count("purged", done.purged)

        def do() -> PurgeResult:
            return purge(self.dead, DeadLetterFilter(ids=ids), limit=limit, dry_run=False, now=now, until=EVER)

        return Action(
            kind="purge",
            purges=True,
            calls=2,
            name=f"purge {chosen or 'all'}, {limit} at most",
            do=do,
            steps=steps,
            then=then,
        )


def _meant(world: World, chosen: LetterKey | None, *, now: datetime) -> list[LetterKey]:
    """Return the letters of a plan, the oldest first: the *chosen* one whenever it died, or all that died by *now*."""
    if chosen is not None:
        return [chosen] if chosen in world.letters else []
    keys = [key for key, one in world.letters.items() if one["dead_lettered_at"] <= now]
    return sorted(keys, key=lambda key: (world.letters[key]["dead_lettered_at"], key))


def _is_open(world: World, key: LetterKey, *, now: datetime) -> bool:
    letter = world.letters[key]
    return "redriven_at" not in letter and not returning.is_under_way(letter, now=now)
