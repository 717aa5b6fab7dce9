"""Storage: one function per MongoDB operation, grouped by what it does to a task.

Each function takes the ``Tasks`` collection that `open_tasks` gives: majority writes, primary reads, raw documents.
"""

from tidemill.store.asking import asked
from tidemill.store.collections import Tasks, majority, open_tasks, translated, untranslated, within

__all__ = ["Tasks", "asked", "majority", "open_tasks", "translated", "untranslated", "within"]
