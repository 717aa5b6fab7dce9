"""What the export is asked for and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidemill.errors import TidemillError

Blame: TypeAlias = Literal["object", "bucket", "either"]

Put: TypeAlias = Callable[[str, bytes], None]
"""Stores a body under a key, over what is there. Called by many threads at once.

It raises `ExportError`, or `SettingsError` where it can store nothing for want of boto3.
"""


class ExportError(TidemillError):
    """An object was not put, as far as is known.

    Attributes:
        code: A word for why; it repeats nothing that was to be stored.
        blame: What stands in the way: what this object is; the bucket, or the way to it, whatever is to be put; or
            either of them, as far as the code tells.
    """

    def __init__(self, code: str, *, blame: Blame) -> None:
        self.code = code
        self.blame = blame
        super().__init__(f"S3 did not take the object ({code})")


class NotALetterError(TidemillError):
    """A file is none that the export has written, or none that this release can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """How an export went.

    Attributes:
        exported: Were put and marked as such.
        refused: Cannot be put; each is tried again later, and keeps none of the others back.
        failed: Puts that failed by no fault of their letters, as far as is known: S3 was down, denied them, or was too
            slow. One whose letter went there later counts, too.
        left: Are not exported yet, the refused among them; counted up to `gauges.MANY`.
        trouble: Why letters are left that the bucket did not refuse, in a word of S3's; the latest; ``None`` where none
            are left.
    """

    exported: int = 0
    refused: int = 0
    failed: int = 0
    left: int = 0
    trouble: str | None = None
