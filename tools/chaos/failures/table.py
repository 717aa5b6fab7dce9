"""What is to become of each use case, whichever of its commands fails, in whichever way: what its caller is told.

============ ===================================================================================================
``ok``       All of it is done.
``later``    It answers, and says that there were errors. What they kept from being done, the next tick does.
``503``      `UnavailableError`, over HTTP a 503: all of it or nothing is done, and a repeat is safe. Of what runs by
             itself and has many effects: the invocation has failed, and the next one does what is left.
``refused``  `RefusedError`, over HTTP the 503 ``misconfigured``: nothing is done, until the database is mended.
``driver``   In a transaction of the caller's: the driver's own error, with its labels; nothing is done.
============ ===================================================================================================

Each cell says it of a command that fails once, twice, and always from then on. One word says it of all three;
``a/b`` says that it depends on how far the use case had come. Nothing else is allowed. Below each row stand the
use cases, and of each the commands that it is about; ``later`` behind a command says that it comes after the claim, or
the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, get_args

from tools.chaos.failures.kinds import Column, Kind

COLUMNS: Final[tuple[Column, ...]] = get_args(Column)
OFTEN: Final = (1, 2, None)

TABLE: Final = """
                                        | moved                 | conflict                  | interrupted               | refused                           | cut                   | reply lost            | unconfirmed           | moved before          | too late
a read                                  | ok ok 503             | 503                       | 503                       | refused                           | ok ok 503             | ok ok 503             |                       |                       | 503
  enqueue; the first enqueue; enqueue, keyed; enqueue many: find control, find task_types, find queues
  enqueue many, keyed; enqueue in a transaction: find control, find task_types, find queues
  the first enqueue: aggregate tasks, aggregate tasks_dlq, aggregate queues, aggregate task_types
  the first enqueue: aggregate control, aggregate queue_stats, aggregate occurrences
  POST /tasks; POST /tasks, keyed; invoked directly; POST /tasks/batch: find control, find task_types, find queues
  GET /tasks/{id}; DELETE /tasks/{id}; cancel; cancel by force; retry now: find tasks
  DELETE /tasks/{id}; retry now: find control
  GET /queues/{queue}: find control, find queues, aggregate tasks
  invoked directly: find tasks, find tasks_dlq
  invoked by a schedule: find control, find occurrences, find task_types, find queues
  execute; execute, capped: aggregate tasks, find queues, find tasks
  archive: find tasks_dlq, find tasks, aggregate tasks_dlq
  pause; set a cap: find queues
  redrive: find task_types, find tasks_dlq, find tasks
  purge: find tasks_dlq
  export: find tasks_dlq, aggregate tasks_dlq
  register: find task_types
a new task                              | ok ok 503             | 503                       | 503                       | refused                           | ok ok 503             | ok ok 503             | 503                   | ok ok 503             | ok ok 503
  enqueue; the first enqueue: insert tasks
  enqueue, keyed: findAndModify tasks
in a transaction of ours                | ok ok 503             | ok ok 503                 | 503                       | refused                           | ok ok 503             | ok ok 503             | 503                   | 503                   | 503
  enqueue many; enqueue many, keyed; POST /tasks/batch: insert tasks
  invoked by a schedule: insert occurrences, insert tasks
its commit                              | ok ok 503             | ok ok 503                 | 503                       | refused                           | ok ok 503             | ok ok 503             | ok ok 503             | ok ok 503             | 503
  enqueue many; enqueue many, keyed; POST /tasks/batch; invoked by a schedule: commitTransaction
a read in it                            | ok ok 503             | ok ok 503                 | 503                       | refused                           | ok ok 503             | ok ok 503             |                       |                       | 503
  enqueue many, keyed; POST /tasks/batch: find tasks
in a transaction of the caller's        | ok ok driver          | ok ok driver              | driver                    | driver                            | ok ok driver          | ok ok driver          | driver                | driver                | driver
  enqueue in a transaction: insert orders, insert tasks, findAndModify tasks
the commit of that                      | ok ok driver          | ok ok driver              | driver                    | driver                            | ok ok driver          | ok ok driver          | ok ok driver          | ok ok driver          | driver
  enqueue in a transaction: commitTransaction
a look at the clock                     |                       |                           |                           |                                   |                       | ok 503 503            |                       |                       | 503
  POST /tasks; POST /tasks, keyed; invoked directly; POST /tasks/batch; DELETE /tasks/{id}: hello
  invoked by a schedule; GET /queues/{queue}: hello
a question before a look                | ok/503 503 503        | 503                       | 503                       | refused                           | ok 503 503            | ok 503 503            |                       |                       | 503
  invoked directly: ping
a write                                 | ok ok 503             | 503                       | 503                       | refused                           | ok ok 503             | ok ok 503             | 503                   | ok ok 503             | 503
  the first enqueue: update control
  POST /tasks; invoked directly: insert tasks
  POST /tasks, keyed; DELETE /tasks/{id}; cancel; cancel by force; retry now: findAndModify tasks
  execute; execute, capped: findAndModify control (executor_slots)
  archive: update tasks_dlq, insert tasks, insert tasks_dlq, delete tasks
  pause; set a cap: findAndModify queues, update queues
  grant a right: findAndModify control (callers)
  redrive: update tasks_dlq, insert tasks
  export: update tasks_dlq
  register: update task_types
the first claim                         | later                 | later                     | later                     | later                             | later                 | later later 503       | later later 503       | later later 503       | later/503
  execute; execute, capped: update tasks (stamp)
a claim with tasks in hand              | later later later/503 | later later later/503     | later later later/503     | later later later/503             | later later later/503 | later later later/503 | later later later/503 | later later later/503 | later later later/503
  execute; execute, capped: update tasks (stamp) later
a read with tasks in hand               | ok ok later/503       | later later/503 later/503 | later later/503 later/503 | later later/refused later/refused | ok ok later/503       | ok ok later/503       |                       |                       | later later later/503
  execute; execute, capped: find tasks later
an outcome                              | ok ok 503             | later later 503           | later later 503           | later later 503                   | ok ok 503             | ok ok 503             | later later 503       | ok ok 503             | later later 503
  execute; execute, capped: update tasks (settle) later
a read beside the work                  | ok ok later           | later                     | later                     | later                             | ok ok later           | ok ok later           |                       |                       | later
  execute; execute, capped: aggregate tasks later
  reclaim: aggregate tasks, find tasks, aggregate tasks_dlq
a write beside the work                 | ok ok later           | later                     | later                     | later                             | ok ok later           | ok ok later           | later                 | ok ok later           | later
  execute: update queue_stats later, findAndModify control (executor_slots) later
  execute, capped: update queue_stats later, findAndModify control (executor_slots) later, findAndModify control (retries) later
  reclaim: update tasks, update tasks (settle), update queue_stats
a permit                                | ok ok later/503       | later/503                 | later/503                 | later/refused                     | ok ok later/503       | ok ok later/503       | later/503             | ok ok later/503       | later/503
  execute, capped: findAndModify control (retries)
what a queue has chosen                 | ok ok ok/later        | ok                        | ok                        | ok                                | ok ok ok/later        | ok ok ok/later        |                       |                       | ok/later
  reclaim: find queues
a write that the driver does not repeat | later                 | later                     | later                     | later                             | later                 | later                 | later                 | later                 | later
  reclaim: update control
what only the answer tells              | ok                    | ok                        | ok                        | ok                                | ok                    | ok                    |                       |                       | ok
  pause; set a cap: find task_types, find queues later
  cancel; cancel by force; retry now: find task_types, find queues
  purge; redrive: aggregate tasks
a deletion of many                      | 503                   | 503                       | 503                       | refused                           | 503                   | 503                   | 503                   | 503                   | 503
  purge: delete tasks_dlq
"""  # noqa: E501 - a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is allowed, by column, for each of `OFTEN` some words; *lines* say of which commands of which use cases."""

    name: str
    texts: tuple[str, ...]
    lines: tuple[str, ...]

    def is_about(self, case: str, command: str) -> bool:
        """Tell whether *command* of *case* is among them."""
        return any(case in cases.split("; ") and command in commands.split(", ") for cases, commands in self._about())

    def allowed(self, column: Column, times: int | None) -> frozenset[str]:
        """Return what is allowed where a command fails in the way of *column* so many *times*; nothing: it cannot."""
        words = self.texts[COLUMNS.index(column)].split()
        return frozenset(words[OFTEN.index(times) if len(words) > 1 else 0].split("/")) if words else frozenset()

    def _about(self) -> Iterator[tuple[str, str]]:
        for line in self.lines:
            cases, commands = line.split(": ")
            yield cases, commands


def allowed(case: str, command: str, kind: Kind, times: int | None) -> frozenset[str]:
    """Return what may become of *case* where *command* fails in the way of *kind* so many *times*.

    Raises:
        LookupError: The table does not say.
    """
    found = [row for row in rows() if row.is_about(case, command)]
    if len(found) != 1 or not (words := found[0].allowed(kind.column, times)):
        raise LookupError(f"the table does not say what becomes of {case} where {command} fails: {kind.column}")
    return words


@cache
def rows() -> tuple[Row, ...]:
    """Return the table."""
    head, *lines = TABLE.strip("\n").splitlines()
    assert tuple(_cells(head)[1:]) == COLUMNS
    return tuple(_rows(lines))


def markdown() -> str:
    """Return the table for people."""
    told = [f"| what fails | {' | '.join(COLUMNS)} |", f"| {' | '.join(['---'] * (1 + len(COLUMNS)))} |"]
    told += [f"| **{row.name}**<br>{'<br>'.join(row.lines)} | {' | '.join(row.texts)} |" for row in rows()]
    return "\n".join(told)


def _rows(lines: list[str]) -> Iterator[Row]:
    while lines:
        name, *texts = _cells(lines.pop(0))
        about = []
        while lines and lines[0].startswith("  "):
            about.append(lines.pop(0).strip())
        yield Row(name=name, texts=tuple(texts), lines=tuple(about))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]
