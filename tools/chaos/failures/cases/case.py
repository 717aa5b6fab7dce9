"""What is to be known of a use case to judge what becomes of it where a command fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tools.chaos.failures.world import APPNAME, World

Effect: TypeAlias = Literal["none", "some", "all"]


def _nothing(_: World) -> None:
    """Do nothing."""


def _as_it_is(command: str, _earlier: Sequence[str]) -> str:
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A use case.

    Attributes:
        name: As the table has it.
        prepare: Makes what it finds, without faults.
        run: The use case itself, with the world's own database; raises as its callers see it.
        effect: How much of its effect there is.
        tells_of_a_rest: Whether its answer says that something is left to be done.
        is_atomic: There is all of its effect or none of it, whatever fails.
        again: What is done once all is well again: by whoever was refused, or by the next ticks.
        at_last: How much of all there was to do is done then; without it, as *effect* tells.
        accepted: Ids of tasks that are accepted whatever becomes of it.
        label: How the table calls a command, by those that went before it.
        appname: What the server knows its client by.
        is_at_rest: Nothing is to be left half-way after *again*.
    """

    name: str
    prepare: Callable[[World], object] = _nothing
    run: Callable[[World], Any]
    effect: Callable[[World], Effect]
    tells_of_a_rest: Callable[[Any], bool] = lambda _: False
    is_atomic: bool = True
    again: Callable[[World], object] | None = None
    at_last: Callable[[World], Effect] | None = None
    accepted: Callable[[World], Sequence[Any]] = lambda _: ()
    label: Callable[[str, Sequence[str]], str] = _as_it_is
    appname: str = APPNAME
    is_at_rest: bool = False


def share(there: int, of: int) -> Effect:
    """Return the effect that *there* are so many."""
    return "none" if there == 0 else "all" if there == of else "some"
