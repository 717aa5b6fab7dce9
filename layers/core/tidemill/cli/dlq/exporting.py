"""``tidemill dlq export`` and ``restore``: what is not in the bucket yet goes there, and objects of it come back."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tidemill.cli.database import database
from tidemill.cli.dlq.progress import progress
from tidemill.cli.dlq.runs import Answers, heard_somewhere, telling_so_far
from tidemill.cli.ops.asking import Document, add_action, answered, said
from tidemill.cli.tables import Commands, clean, say
from tidemill.cli.watch import complain
from tidemill.clock import ServerClock
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import TidemillError
from tidemill.export import restore
from tidemill.operations.letter_requests import MAX_LETTERS
from tidemill.store import Tasks, gauges, ids, open_tasks


class NotExportedError(TidemillError):
    """Letters are left that are not in the bucket."""


class NotRestoredError(TidemillError):
    """Files are left that were not restored."""


def add_to(actions: Commands) -> None:
    """Add ``export`` and ``restore``."""
    exporting = add_action(actions, "export", "copy dead letters to the bucket that are not there yet, as archive does")
    exporting.set_defaults(command=_export)
    restoring = add_action(actions, "restore", "bring exported dead letters back from files, on MONGODB_URI only")
    restoring.add_argument("files", nargs="+", type=Path, metavar="FILE", help="an object of the bucket, as it is")
    restoring.set_defaults(command=_restore)


def _export(chosen: argparse.Namespace) -> None:
    answers = Answers("exported")
    with telling_so_far(answers, "exported"):
        answer = _all_exported(chosen, answers)
    told = answers.document | {"left": answer["left"]}
    letters = "dead letter" if told["exported"] == 1 else "dead letters"
    sentence = f"{told['exported']} {letters} of {told['database']} exported"
    with heard_somewhere(lambda: [sentence]):
        if not said(chosen, told):
            say(sentence)
    if told["left"]:
        raise NotExportedError(_left(told))


def _all_exported(chosen: argparse.Namespace, answers: Answers) -> Document:
    """Return the last answer: nothing is left then, or nothing goes on."""
    event = {"op": "dlq.export", "limit": MAX_LETTERS}
    answers.unanswered = MAX_LETTERS
    answer = answered(chosen, event)
    answers.add(answer)
    with progress("exporting", total=answer["exported"] + answer["left"]) as step:
        step(answer["exported"] + answer["refused"])
        while answer["left"] and (answer["exported"] or answer["refused"]):
            answers.unanswered = MAX_LETTERS
            answer = answered(chosen, event)
            answers.add(answer)
            step(answer["exported"] + answer["refused"])
    return answer


def _left(told: Document) -> str:
    many = f"{told['left']} or more" if told["left"] >= gauges.MANY else str(told["left"])
    letters = "dead letter is" if told["left"] == 1 else "dead letters are"
    return f"{many} {letters} left, only in {told['database']}: {'; '.join(_reasons(told))}"


def _reasons(told: Document) -> Iterator[str]:
    if told["trouble"] is not None:
        yield f"S3 says {told['trouble']}"
    elif not told["refused"]:
        yield f"the bucket refused {'it' if told['left'] == 1 else 'them'} before"
    if told["refused"]:
        yield f"the bucket refused {told['refused']} now"
    if told["refused"] or told["trouble"] is None:
        yield "`tidemill dlq show ID` says why"


def _restore(chosen: argparse.Namespace) -> None:
    if chosen.function is not None:
        raise NotRestoredError("files are restored on MONGODB_URI only, not by a function")
    db = database()
    dead, clock = open_tasks(db, DEAD_LETTERS), ServerClock(db)
    told: list[Document] = []
    for file in chosen.files:
        try:
            told.append(_restored(file, dead, clock))
        except (TidemillError, OSError) as error:
            reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
            complain(f"{file}: {reason}")
    with heard_somewhere(lambda: map(_line, told)):
        if not said(chosen, {"files": told, "database": db.name}):
            for one in told:
                say(_line(one))
    if len(told) < len(chosen.files):
        raise NotRestoredError(f"{len(chosen.files) - len(told)} of {len(chosen.files)} files were not restored")


def _restored(file: Path, dead: Tasks, clock: ServerClock) -> Document:
    restored = restore(dead, file.read_bytes(), now=clock.now())
    if restored is None:
        return {"file": str(file), "restored": False}
    return {"file": str(file), "restored": True, "id": ids.shown(restored.task), "redrives": restored.redrives}


def _line(one: Document) -> str:
    if not one["restored"]:
        return f"{clean(one['file'])}: is among the dead letters already"
    again = f", redriven {one['redrives']} times before" if one["redrives"] else ""
    return f"{clean(one['file'])}: task {clean(one['id'])} is a dead letter again{again}"
