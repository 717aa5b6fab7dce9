"""The table of a drive: a row for each step, printed as it ends."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Result: TypeAlias = Literal["ok", "FAILED", "skipped"]
WIDTH: Final = 62


class SkippedError(Exception):
    """A step cannot be taken here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step, and what came of it."""

    step: str
    seconds: float
    result: Result
    detail: str

    def __str__(self) -> str:
        return f"{self.step:<{WIDTH}}  {self.seconds:6.1f}  {self.result:<7}  {self.detail}".rstrip()


HEADING: Final = f"{'step':<{WIDTH}}  {'seconds':>6}  {'result':<7}  what was seen"


@dataclass(slots=True)
class Table:
    """The rows so far."""

    rows: list[Row] = field(default_factory=list)
    _began_at: float = field(default_factory=time.monotonic)

    def take(self, step: str, action: Callable[[], str], *, began_at: float | None = None) -> bool:
        """Take a step, print its row, and tell whether it did not fail.

        Args:
            step: Its name.
            action: Does it, and returns what was seen; raises where that is not what should be.
            began_at: When it began, on the monotonic clock, where that was earlier.
        """
        began_at = time.monotonic() if began_at is None else began_at
        result: Result = "ok"
        try:
            detail = action()
        except SkippedError as error:
            result, detail = "skipped", str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result of this step
            result, detail = "FAILED", f"{type(error).__name__}: {error}{_where(error)}"
        row = Row(step=step, seconds=time.monotonic() - began_at, result=result, detail=detail)
        if not self.rows:
            print(HEADING, flush=True)
        self.rows.append(row)
        print(row, flush=True)
        return result != "FAILED"

    def end(self) -> bool:
        """Print the sum, and tell whether no step failed."""
        failed = [row.step for row in self.rows if row.result == "FAILED"]
        seconds = time.monotonic() - self._began_at
        said = f"FAILED: {'; '.join(failed)}" if failed else "all steps ok"
        print(f"{len(self.rows)} steps in {seconds:.0f} s: {said}", flush=True)
        sys.stdout.flush()
        return not failed


def _where(error: Exception) -> str:
    """Return the line of the drive that was not satisfied, for an assertion without words."""
    if str(error):
        return ""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{place.line} ({place.name}, line {place.lineno})"
