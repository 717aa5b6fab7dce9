"""Finish redrives that were cut short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters import redriving
from tidemill.redrive.around import Around
from tidemill.redrive.carrying import carry, close
from tidemill.redrive.judging import Verdict, judge
from tidemill.redrive.run import BATCH
from tidemill.redrive.seen import UNDER_WAY, Seen, portion, seen
from tidemill.redrive.sorting import sort
from tidemill.redrive.values import Ground


def complete(
    on: Ground, *, until: float, monotonic: Callable[[], float] = time.monotonic, forgotten_after: timedelta
) -> int:
    """Finish what redrives have left that were cut short more than a minute ago; return how many tasks are back.

    Where the task, or a later death of it, is there, only the letter is closed. Where something stands against the
    task, or the redrive was begun *forgotten_after* ago, so that the task may have been done and removed since, the
    letter is left as it was before. One that MongoDB refuses to change keeps no other back. Goes on until *until*
    (monotonic); safe to stop anywhere, and to repeat.

    Raises:
        UnavailableError: The rest is left to the next run.
    """
    back = 0
    portions = _cut_short(on)
    while monotonic() < until and (letters := next(portions, None)):
        back += _complete(on, letters, forgotten_after=forgotten_after)
    return back


def _cut_short(on: Ground) -> Iterator[Sequence[Seen]]:
    """Yield letters that may be held at once, and were begun by plans of one kind."""
    now = on.clock.now()
    for page in redriving.cut_short(on.dead, before=now - UNDER_WAY, after=now + UNDER_WAY, limit=BATCH):
        letters = [seen(raw) for raw in page]
        for drops_expiry in (False, True):
            rest: Sequence[Seen] = [one for one in letters if one.drops_expiry == drops_expiry]
            while rest:
                held = portion(rest)
                yield held
                rest = rest[len(held) :]


def _complete(on: Ground, letters: Sequence[Seen], *, forgotten_after: timedelta) -> int:
    now = on.clock.now()
    around = Around(registered=None)

    def decide(letter: Seen, body: RawBSONDocument) -> Verdict:
        return judge(letter, body, around, due_at=_due_at(letter, now), drops_expiry=letter.drops_expiry, now=now)

    without = ("expires_at",) if letters[0].drops_expiry else ()
    found = sort(on, letters, around, without=without, decide=decide)
    fresh = [one for one in found.ready if _is_within(forgotten_after, one.letter, now)]
    unfit = [one for one, _ in found.refused]
    unfit += [one.letter for one in found.ready if not _is_within(forgotten_after, one.letter, now)]
    closed = close(on, [(one, one.token) for one in found.back])
    redriving.take_back(on.dead, [(one.raw_id, one.token) for one in unfit])
    return closed.redriven + carry(on, fresh).redriven


def _due_at(letter: Seen, now: datetime) -> datetime | None:
    return letter.due_at if letter.due_at is not None and letter.due_at > now else None


def _is_within(span: timedelta, letter: Seen, now: datetime) -> bool:
    """Tell whether a redrive was begun no longer ago than this, by a clock that may have been ahead by as much."""
    return letter.started_at is not None and abs(now - letter.started_at) <= span
