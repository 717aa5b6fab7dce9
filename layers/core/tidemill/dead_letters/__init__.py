"""Failed tasks, kept in ``tasks_dlq``: how they get there, are found, and find their way back."""

from tidemill.dead_letters.lookups import latest
from tidemill.dead_letters.values import CHANGING, MARKS, Letter, LetterId, read_letter

__all__ = ["CHANGING", "MARKS", "Letter", "LetterId", "latest", "read_letter"]
