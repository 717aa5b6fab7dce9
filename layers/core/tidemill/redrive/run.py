"""Redrive dead letters page by page, the oldest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters import pages, redriving
from tidemill.dead_letters.places import Place, no_cursor, place_in, place_of, sealed, unsealed
from tidemill.redrive.around import Around
from tidemill.redrive.carrying import carry, close
from tidemill.redrive.judging import Ready, Verdict, judge
from tidemill.redrive.seen import Seen, portion, seen
from tidemill.redrive.sorting import sort
from tidemill.redrive.spread import Spread
from tidemill.redrive.tally import Tally
from tidemill.redrive.values import Plan, Redriven, Redriver, under_way

BATCH: Final = 500
_OPEN: Final = {"redriven_at": None}


def redrive(
    on: Redriver,
    plan: Plan,
    *,
    limit: int,
    dry_run: bool,
    after: str | None = None,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> Redriven:
    """Redrive open dead letters until *limit* tasks are back, or *until* (monotonic) is past, or none is left.

    What dies while it goes on, from the first call to the last one's cursor, is not met. Stopped anywhere, `complete`
    finishes what was begun. With *dry_run* nothing is written, and what would have become of the letters is returned.

    Raises:
        InvalidRequestError: *after* is not a cursor.
        UnavailableError: MongoDB did not confirm; what was begun will be completed.
    """
    now = on.clock.now()
    state = _State.first(now, plan) if after is None else _State.of(after, plan, now=now)
    return _Run(on, plan, state, dry_run=dry_run).on_until(limit=limit, until=until, monotonic=monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """How far a redrive has got: what its cursor holds."""

    after: Place | None
    up_to: datetime
    spread: Spread

    @classmethod
    def first(cls, now: datetime, plan: Plan) -> _State:
        return cls(after=None, up_to=now, spread=Spread(per_sec=plan.per_sec, start=now))

    @classmethod
    def of(cls, cursor: str, plan: Plan, *, now: datetime) -> _State:
        state = unsealed(cursor)
        up_to, start, placed = (state.get(name) for name in ("up_to", "start", "placed"))
        if not (isinstance(up_to, datetime) and isinstance(start, datetime) and isinstance(placed, int)):
            raise no_cursor()
        spread = Spread(per_sec=plan.per_sec, start=start, placed=placed)
        if not spread.is_sane(now=now):
            raise no_cursor()
        return cls(after=place_in(state), up_to=up_to, spread=spread)

    def cursor(self) -> str | None:
        if self.after is None:
            return None
        rest: dict[str, Any] = {"up_to": self.up_to, "start": self.spread.start, "placed": self.spread.placed}
        return sealed(self.after.document() | rest)


class _Run:
    def __init__(self, on: Redriver, plan: Plan, state: _State, *, dry_run: bool) -> None:
        self._on = on
        self._plan = plan
        self._state = state
        self._is_dry = dry_run
        self._around = Around(registered=on.registered())
        self._tally = Tally()

    def on_until(self, *, limit: int, until: float, monotonic: Callable[[], float]) -> Redriven:
        while self._tally.redriven < limit:
            self._go_on(limit - self._tally.redriven)
            if self._state.after is None or monotonic() >= until:
                break
        return self._tally.result(cursor=self._state.cursor())

    def _go_on(self, limit: int) -> None:
        page = pages.page(
            self._on.dead,
            self._plan.which,
            limit=min(limit, BATCH),
            shown=redriving.SHOWN,
            after=self._state.after,
            up_to=self._state.up_to,
            only=_OPEN,
        )
        letters = [seen(raw) for raw in page.letters]
        held = portion(letters)
        if held:
            self._redrive(held)
        following = letters[len(held) :]
        self._state = replace(self._state, after=place_of(following[0].raw) if following else page.behind)

    def _redrive(self, letters: Sequence[Seen]) -> None:
        on, tally, now = self._on, self._tally, self._on.clock.now()
        tally.looked_at += len(letters)
        tally.refuse(under_way(one.id) for one in letters if one.is_under_way(now=now))
        found = sort(
            on,
            [one for one in letters if not one.is_under_way(now=now)],
            self._around,
            without=("expires_at",) if self._plan.drop_expiry else (),
            decide=lambda letter, body: self._decide(letter, body, now),
        )
        tally.refuse(one for _, one in found.refused)
        if self._is_dry:
            tally.redriven += len(found.back) + len(found.ready)
            return
        closed = close(on, [(one, one.token) for one in found.back])
        carried = carry(on, found.ready)
        tally.redriven += closed.redriven + carried.redriven
        tally.refuse([*closed.refused, *carried.refused])

    def _decide(self, letter: Seen, body: RawBSONDocument, now: datetime) -> Verdict:
        spread, drops_expiry = self._state.spread, self._plan.drop_expiry
        due_at = None if spread.is_full else spread.due_at(now=now)
        verdict = judge(letter, body, self._around, due_at=due_at, drops_expiry=drops_expiry, now=now)
        if not isinstance(verdict, Ready):
            return verdict
        if spread.is_full:
            return verdict.refused("far_off", "at this rate its turn would be more than a year away")
        self._state = replace(self._state, spread=spread.further(now=now))
        return verdict
