"""What an operator should know beside an answer; none of it keeps the answer away."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import TidemillError
from tidemill.operations.desk import Desk


def warnings_of(look: Callable[[], list[str]], *, of: str) -> list[str]:
    """Return the warnings that *look* finds, or that what they are *of* cannot be said."""
    try:
        return look()
    except TidemillError as error:
        return [unknown(of, error)]


def unknown(what: str, error: TidemillError) -> str:
    """Return the warning that *what* cannot be told."""
    return f"{what} cannot be told: {error}"


def of_nobody(desk: Desk) -> list[str]:
    """Warn of a database where no executor ever was."""
    return warnings_of(lambda: _nobody(desk), of="whether an executor ever was at work here")


def _nobody(desk: Desk) -> list[str]:
    if desk.directory.has_types():
        return []
    return [f"no executor has ever registered its functions in {desk.db.name}: is MONGODB_DATABASE right?"]
