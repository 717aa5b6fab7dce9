"""One operation asked for page by page, and what came of all pages together."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tidemill.aws import NotInvokedError
from tidemill.cli.dlq.progress import Step
from tidemill.cli.ops.asking import Document, RefusedByFunctionError, answered
from tidemill.cli.tables import OutputError, flush
from tidemill.cli.watch import complain
from tidemill.errors import InvalidRequestError, SettingsError, TaskNotFoundError, TidemillError
from tidemill.operations.letter_requests import MAX_LETTERS

MAX_EXAMPLES: Final = 20
GOES_ON: Final = "the same command goes on with the rest"
_OF_ALL: Final = (SettingsError, NotInvokedError)
"""What keeps all that is asked for from being done."""

_HARMLESS: Final = ("not_found", "not_allowed", "invalid_event")
"""Codes of refusals with which the function says that nothing was done."""


class Answers:
    """What came of the pages so far, in the fields of their answers.

    Attributes:
        unanswered: To so many letters more something may have been done: they were asked for, and no answer came.
        began_at: When the first answer was given.
    """

    def __init__(self, counted: str) -> None:
        self.counted = counted
        self.document: Document = {}
        self.failed = 0
        self.unanswered = 0
        self.began_at: str | None = None

    @property
    def done(self) -> int:
        """How many letters something was done to."""
        return int(self.document.get(self.counted, 0))

    def add(self, answer: Document) -> None:
        """Count *answer* in: numbers and counts are added up, examples kept, all else is as the newest has it."""
        before, self.unanswered = self.document, 0
        self.began_at = self.began_at or answer["now"]
        self.document = answer | {name: _together(before[name], answer.get(name)) for name in before}


def run(
    chosen: argparse.Namespace, events: Sequence[Document], answers: Answers, *, limit: int | None, step: Step
) -> None:
    """Ask for each of *events* until nothing is left of it, or *limit* letters are done.

    One of several that is refused as a whole keeps the others from nothing.

    Raises:
        TidemillError: The one that there is was refused, or one was not answered, so that all ends.
    """
    for event in events:
        try:
            _run(chosen, event, answers, limit=limit, step=step)
        except TidemillError as error:
            if len(events) == 1 or not _is_harmless(error) or isinstance(error, _OF_ALL):
                raise
            complain(str(error))
            answers.failed, answers.unanswered = answers.failed + 1, 0


@contextmanager
def telling_so_far(
    answers: Answers, did: str, *, ends: Callable[[], Sequence[str]] = lambda: [GOES_ON]
) -> Iterator[None]:
    """Say what was done so far where it ends too early, for certain and perhaps; and what *ends* says of the rest."""
    try:
        yield
    except (KeyboardInterrupt, TidemillError) as error:
        if _is_harmless(error):
            answers.unanswered = 0
        so_far = f"stopped early: {answers.done} {did}"
        if answers.unanswered:
            complain("; ".join([f"{so_far} for certain, up to {answers.unanswered} more may have been", *ends()]))
        elif answers.document:
            complain("; ".join([f"{so_far} so far", *ends()]))
        raise


@contextmanager
def heard_somewhere(lines: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Say *lines*, what was done, on stderr where stdout takes nothing of it."""
    try:
        yield
        flush()
    except (OutputError, BrokenPipeError):
        for line in lines():
            complain(line)
        raise


def going_on(chosen: argparse.Namespace) -> str:
    """Return what becomes of the rest."""
    return GOES_ON if chosen.limit is None else f"{GOES_ON}, and counts --limit from 0"


def _is_harmless(error: BaseException) -> bool:
    """Tell whether the call that ended so has done nothing for certain."""
    if isinstance(error, RefusedByFunctionError):
        return error.code in _HARMLESS
    return isinstance(error, (TaskNotFoundError, InvalidRequestError, *_OF_ALL))


def _run(chosen: argparse.Namespace, event: Document, answers: Answers, *, limit: int | None, step: Step) -> None:
    following: Document = {}
    while limit is None or answers.done < limit:
        most = MAX_LETTERS if limit is None else min(limit - answers.done, MAX_LETTERS)
        answers.unanswered = 1 if "id" in event else most
        answer = answered(chosen, event | {"limit": most} | following)
        answers.add(answer)
        step(answer[answers.counted])
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
