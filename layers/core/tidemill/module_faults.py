"""Faults of task modules and registrations: where they are, and a sentence that holds no secret."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import FrameType
from typing import Final

from tidemill import model
from tidemill.errors import TidemillError
from tidemill.policy.failures import describe_without_causes, describe_without_message, truncate_text

MAX_PROBLEM_CHARS: Final = 500
MAX_LISTED_FAULTS: Final = 3

_NO_SUCH_ARGUMENT: Final = r"[\w.]+\(\) got an unexpected keyword argument '\w+'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A task module that cannot be imported, or a registration that is refused.

    Attributes:
        module: Name of the module.
        file: Its file, from the folder that holds the package: ``tasks/billing.py``.
        line: The line at fault, from 1; ``None`` if there is none.
        problem: What failed, why, and what to do; at most `MAX_PROBLEM_CHARS`, without the values that a module holds.
        name: Name of the task that is refused; ``None`` if the whole module is, or the name itself.
    """

    module: str
    file: str
    line: int | None
    problem: str
    name: str | None = None

    def __str__(self) -> str:
        """Return the place and the problem."""
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.problem}"


def describe_faults(faults: Sequence[Fault]) -> str:
    """Return the first of *faults* in one bounded line, and the number of the rest."""
    more = [f"{len(faults) - MAX_LISTED_FAULTS} more"] if len(faults) > MAX_LISTED_FAULTS else []
    return "; ".join([*map(str, faults[:MAX_LISTED_FAULTS]), *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Module and line of a registration. ``is_imported`` is true if the module could be found by its name."""

    module: str
    file: str
    line: int | None = None
    is_imported: bool = False

    def is_gone(self) -> bool:
        """Return true if the import of the module has failed: Python then forgets the module."""
        return self.is_imported and self.module not in sys.modules

    def make_fault(self, problem: str, package: str, *, name: str | None = None) -> Fault:
        """Return the fault of *package* at this place."""
        file = _find_in_package(self.file, package) or PurePath(self.file).name
        problem = truncate_text(problem, MAX_PROBLEM_CHARS)
        return Fault(module=self.module, file=file, line=self.line, problem=problem, name=name)


def find_place() -> Place:
    """Return the place of the registration that is being made: in the module that is being imported, if there is one.

    A package may have a decorator of its own around ours.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - public in all but name: `inspect` and `logging` use it
    caller = frame
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    found = frame or caller
    if found is None:
        return Place(module="", file="")
    module = str(found.f_globals.get("__name__", ""))
    is_imported = getattr(sys.modules.get(module), "__dict__", None) is found.f_globals
    return Place(module=module, file=found.f_code.co_filename, line=found.f_lineno, is_imported=is_imported)


def describe_failed_import(error: BaseException) -> str:
    """Return the description of *error*, with its message only if Python or Tidemill wrote it.

    A module may connect to a server while it is imported. The message, or that of a cause, may contain the credentials.
    """
    if type(error) in {SyntaxError, IndentationError, TabError}:  # it has file and line, and was raised by Python
        return f"{type(error).__name__}: {error}"
    is_harmless = issubclass(type(error), (ImportError, SyntaxError, TidemillError)) or _is_about_an_argument(error)
    return describe_without_causes(error) if is_harmless else describe_without_message(error)


def find_failed_place(name: str, error: BaseException, package: str) -> Place:
    """Return the innermost line of *package* that the import of the module *name* came to."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        lines.append((error.filename, error.lineno or 1))
    for file, line in reversed(lines):
        if _find_in_package(file, package) is not None:
            return Place(module=name, file=file, line=line)
    return Place(module=name, file=f"{name.replace('.', '/')}.py")


def _is_about_an_argument(error: BaseException) -> bool:
    if type(error) is TypeError:
        return re.fullmatch(_NO_SUCH_ARGUMENT, str(error)) is not None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return type(error) is ValueError and frame.f_globals.get("__name__") == model.__name__


def _find_in_package(file: str, package: str) -> str | None:
    """Return the path of *file* from the folder that holds *package*; ``None`` for a file elsewhere."""
    folders, parts = package.split("."), list(PurePath(file).parts)
    starts = [n for n in range(len(parts)) if parts[n : n + len(folders)] == folders]
    return str(PurePath(*parts[starts[-1] :])) if starts else None
