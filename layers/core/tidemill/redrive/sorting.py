"""Sort dead letters by whether they may go back: all that is read for it, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters import redriving
from tidemill.redrive.around import Around
from tidemill.redrive.judging import Back, Ready, Verdict
from tidemill.redrive.seen import Seen
from tidemill.redrive.values import Ground, Refused

Decide: TypeAlias = Callable[[Seen, RawBSONDocument], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Letters that may go back, whose tasks are back already, and that may not."""

    ready: list[Ready]
    back: list[Seen]
    refused: list[tuple[Seen, Refused]]


def sort(on: Ground, letters: Sequence[Seen], around: Around, *, without: Iterable[str], decide: Decide) -> Sorted:
    """Let *decide* see each of *letters* with its body, in order; what is gone by now is left out.

    Args:
        on: Where they are.
        letters: What may be held at once.
        around: Learns what is there, and then what is to be there because of those that are ready.
        without: Fields that the tasks are not to have.
        decide: Called once what is around is known.
    """
    bodies = redriving.bodies(on.dead, [one.raw_id for one in letters], without=without)
    there = [one for one in letters if one.key in bodies]
    around.look(on, there, bodies.values())
    found = Sorted(ready=[], back=[], refused=[])
    for letter in there:
        match decide(letter, bodies[letter.key]):
            case Ready() as one:
                around.expect(one.task, of=letter)
                found.ready.append(one)
            case Back():
                found.back.append(letter)
            case Refused() as one:
                found.refused.append((letter, one))
    return found
