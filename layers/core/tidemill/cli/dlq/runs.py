"""One operation asked for page by page, and what came of all pages together."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tidemill.cli.dlq.progress import Step
from tidemill.cli.ops.asking import Document, RefusedByFunctionError, answered
from tidemill.cli.watch import complain
from tidemill.errors import InvalidRequestError, TaskNotFoundError, TidemillError
from tidemill.operations.letter_requests import MAX_LETTERS

MAX_EXAMPLES: Final = 20


class Tally:
    """What came of the pages so far, in the fields of their answers."""

    def __init__(self, counted: str) -> None:
        self.counted = counted
        self.document: Document = {}
        self.failed = 0

    @property
    def done(self) -> int:
        """How many letters something was done to."""
        return int(self.document.get(self.counted, 0))

    def add(self, answer: Document) -> None:
        """Count *answer* in: numbers and counts are added up, examples kept, all else is as the newest has it."""
        before = self.document
        self.document = answer | {name: _together(before[name], answer.get(name)) for name in before}


def run(chosen: argparse.Namespace, events: Sequence[Document], tally: Tally, *, limit: int | None, step: Step) -> None:
    """Ask for each of *events* until nothing is left of it, or *limit* letters are done.

    One of several that is refused as a whole keeps the others from nothing.

    Raises:
        TidemillError: The one that there is was not answered, or all that was asked for could not go on.
    """
    for event in events:
        try:
            _run(chosen, event, tally, limit=limit, step=step)
        except (TaskNotFoundError, InvalidRequestError, RefusedByFunctionError) as error:
            if len(events) == 1:
                raise
            complain(str(error))
            tally.failed += 1


@contextmanager
def telling_so_far(tally: Tally, did: str) -> Iterator[None]:
    """Say what was done so far where it ends too early."""
    try:
        yield
    except (KeyboardInterrupt, TidemillError):
        if tally.document:
            complain(f"stopped early: {tally.done} {did} so far; the same command goes on with the rest")
        raise


def _run(chosen: argparse.Namespace, event: Document, tally: Tally, *, limit: int | None, step: Step) -> None:
    following: Document = {}
    while limit is None or tally.done < limit:
        most = MAX_LETTERS if limit is None else min(limit - tally.done, MAX_LETTERS)
        answer = answered(chosen, event | {"limit": most} | following)
        tally.add(answer)
        step(answer[tally.counted])
        if answer["next"] is None:
            return
        following = {"cursor": answer["next"]}


def _together(one: object, other: object) -> object:
    match one, other:
        case bool(), _:
            return other
        case int(), int():
            return one + other
        case dict(), dict():
            return _added(one, other)
        case list(), list():
            return [*one, *other][:MAX_EXAMPLES]
    return other


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
