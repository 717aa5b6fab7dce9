"""What an operator may ask of dead letters."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from tidemill.dead_letters.values import MAX_REDRIVES
from tidemill.operations.requests import MAX_CURSOR, MAX_LIMIT, Id, Name, Operation
from tidemill.requests import Moment

MAX_LETTERS: Final = 1_000
"""So many are redriven, purged or exported by one call; its answer says where the next goes on."""

MIN_PER_SEC: Final = 0.001
MAX_PER_SEC: Final = 1_000_000.0
_FILTERS: Final = ("fingerprint", "name", "queue", "since", "until")

Cursor = Annotated[str, Field(min_length=1, max_length=MAX_CURSOR)]
Redrives = Annotated[int, Field(ge=0, le=MAX_REDRIVES)]


class Filtered(Operation):
    """Letters that match all that is given: ``since`` <= when they died < ``until``."""

    fingerprint: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    name: Name | None = None
    queue: Name | None = None
    since: Moment | None = None
    until: Moment | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("since must be before until")
        return self

    @property
    def is_filtered(self) -> bool:
        """Whether anything is given that a letter has to match."""
        return any(getattr(self, name) is not None for name in _FILTERS)


class Chosen(Filtered):
    """Letters that something is done to: one, those that match, or expressly all."""

    id: Id | None = None
    redrives: Redrives | None = None
    all: bool = False
    dry_run: bool = False
    limit: int = Field(default=MAX_LETTERS, ge=1, le=MAX_LETTERS)
    cursor: Cursor | None = None

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        ways = (self.id is not None, self.is_filtered, self.all)
        if not any(ways):
            raise ValueError(f"say which dead letters: id, {', '.join(_FILTERS)}, or all: true")
        if sum(ways) > 1:
            raise ValueError("id, filters and all exclude each other")
        if self.redrives is not None and self.id is None:
            raise ValueError("redrives goes with id")
        return self


class DeadLetterGroups(Operation):
    """The largest groups of open dead letters that failed for the same reason."""

    op: Literal["dlq.groups"]
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)


class DeadLetterList(Filtered):
    """A page of dead letters, the newest death first; ``redriven``: those that went back, ``null`` both."""

    op: Literal["dlq.list"]
    redriven: bool | None = False
    limit: int = Field(default=20, ge=1, le=MAX_LIMIT)
    cursor: Cursor | None = None


class DeadLetterShow(Operation):
    """One dead letter with its execution log, and the other deaths of its task."""

    op: Literal["dlq.show"]
    id: Id
    redrives: Redrives | None = None


class DeadLetterRedrive(Chosen):
    """Run tasks again from the beginning; with ``per_sec`` so many become due a second."""

    op: Literal["dlq.redrive"]
    per_sec: float | None = Field(default=None, ge=MIN_PER_SEC, le=MAX_PER_SEC)
    drop_expiry: bool = False


class DeadLetterPurge(Chosen):
    """Delete dead letters."""

    op: Literal["dlq.purge"]


class DeadLetterExport(Operation):
    """Copy to the bucket what is not there yet."""

    op: Literal["dlq.export"]
    limit: int = Field(default=MAX_LETTERS, ge=1, le=MAX_LETTERS)
