"""Rules of what does not go undisturbed: use cases that are cut short, and two at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tools.chaos.model.actions import Action, one_after_the_other
from tools.chaos.model.keeping import Keeping


class Disturbing(Keeping):
    """Processes die, and others are at work meanwhile."""

    def die_at_a_call(self, what: int, a: int, b: int, number: int) -> None:
        """Begin something, and die before or after one of its calls."""
        action = self._something(what, a, b)
        self.cut_short(action, number=1 + number // 2 % action.calls, after=number % 2 == 1)

    def do_two_things_at_once(self, what: int, a: int, b: int, number: int) -> None:
        """Do something that takes several calls, and something else between two of them."""
        first, second = self._something(what % LONG, a, b), self._something(number + a, b, a)
        self.at_once(first, second, before_call=1 + number % first.calls)

    def archive_twice(self, a: int, b: int, number: int) -> None:
        """Have one archive move what another is about to move, and redrive it before that goes on."""
        second = one_after_the_other(self.an_archive(), self.a_redrive(a, b))
        self.at_once(self.an_archive(), second, before_call=3 + number % 3)

    def die_while_redriving(self, a: int, b: int, number: int) -> None:
        """Begin a redrive, and die once letters are marked, or tasks inserted, or later."""
        self.cut_short(self.a_redrive(a, b), number=4 + number // 2 % 6, after=number % 2 == 1)

    def _something(self, what: int, a: int, b: int) -> Action:
        """Return an action, one that changes anything if there is one."""
        start = what % len(CUT)
        tried = [one(self, a, b) for one in (*CUT[start:], *CUT[1:start])]
        return next((one for one in tried if one.changes(self.world)), tried[0])


CUT: Final[Sequence[Callable[[Disturbing, int, int], Action]]] = (
    lambda one, a, _b: one.a_purge(a),
    Disturbing.a_redrive,
    lambda one, _a, _b: one.an_archive(),
    lambda one, a, _b: one.a_reclaim(a),
    lambda one, a, b: one.a_claim(a, b, 4),
    Disturbing.a_redrive,
    lambda one, a, b: one_after_the_other(one.an_archive(), one.a_redrive(a, b)),
    lambda one, a, b: one.a_settling(a, b, many=1 + b % 3),
    Disturbing.a_cancellation,
    Disturbing.a_release,
)
"""What is cut short, or done beside something else,"""

LONG: Final = 7
"""of which so many, the first, take several calls."""
