"""Tracebacks for the author of task functions: without the frames of Python's imports and of Tidemill itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

import tidemill
from tidemill.cli.output import clean
from tidemill.registry import REGISTRY

_PACKAGE: Final = str(Path(tidemill.__file__).parent)


def clean_lines(text: str) -> list[str]:
    """Return the lines of *text*, each with its indentation and without characters that could steer a terminal."""
    return [line[: len(line) - len(line.lstrip(" "))] + clean(line) for line in text.splitlines()]


def format_error(error: BaseException) -> list[str]:
    """Return the lines of the traceback of *error*, from the first frame of the project on."""
    summary = traceback.TracebackException(type(error), error, _find_own_frame(error.__traceback__))
    return clean_lines("".join(summary.format()))


def format_place(error: BaseException, *, limit: int) -> list[str]:
    """Return the last *limit* frames of *error* in the project, without its message, which may hold a secret."""
    frames = traceback.extract_tb(_find_own_frame(error.__traceback__))
    return clean_lines("".join(traceback.format_list(frames)[-limit:]))


def find_import_error(module: str, package: str) -> BaseException | None:
    """Import *module* of *package* once more; return its error, or ``None`` without one."""
    try:
        if module in sys.modules or importlib.util.find_spec(module) is None:
            return None
    except (ImportError, ValueError):  # the name is none of a module
        return None
    except BaseException as error:  # noqa: BLE001 - the package of the module may raise anything
        return error
    try:
        with REGISTRY.collecting(package):
            importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - as above
        return error
    return None


def _find_own_frame(frame: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the code of the project; ``None`` if it never gets there."""
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not (file.startswith((_PACKAGE, "<frozen ")) or "importlib" in Path(file).parts):
            return frame
        frame = frame.tb_next
    return None
