"""What the functions of the load left behind: a line for every run that began, and for every one that succeeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Traces:
    """By the id of the task.

    Attributes:
        began, done: How many of its runs.
        payloads: What they were given: the number, and the length of the text.
    """

    began: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    payloads: dict[str, set[tuple[int, int]]] = field(default_factory=dict)


def read(lines: Iterable[str]) -> Traces:
    """Return what *lines* tell, in any order."""
    traces = Traces()
    for line in lines:
        what, task_id, _, n, length = line.split()
        (traces.began if what == "began" else traces.done)[task_id] += 1
        traces.payloads.setdefault(task_id, set()).add((int(n), int(length)))
    return traces
