"""``tidemill ops task``: tasks, and what became of their attempts. Neither payloads nor results are shown."""

from __future__ import annotations

import argparse
from typing import Final, get_args

from tidemill.cli.ops import task_lists, task_text
from tidemill.cli.ops.asking import Document, add_action, answered, said
from tidemill.cli.tables import Commands, clean, facts, points, say
from tidemill.model import Status
from tidemill.operations.requests import MAX_LIMIT

MAX_PAGES: Final = 10
"""So many pages are asked for by one command: each may look at many tasks and find none that matches."""

MOST: Final = MAX_PAGES * MAX_LIMIT

_ID: Final = "the task's id as `task ls` shows it, or in JSON; one that begins with - goes last, behind --"


def add_to(topics: Commands) -> None:
    """Add ``task`` with its sub-commands."""
    task = topics.add_parser("task", help="look at tasks, hurry or cancel one", allow_abbrev=False)
    actions = task.add_subparsers(required=True, metavar="ACTION")
    _add_list_to(actions)
    _add(actions, "show", "show how a task stands and what became of its attempts").set_defaults(command=_show)
    _add(actions, "explain", "say why a task is not running").set_defaults(command=_explain)
    _add(actions, "retry", "make a task due now that waits for its retry, or its delay").set_defaults(command=_retry)
    cancelling = _add(actions, "cancel", "cancel a task, or ask it to stop where it runs")
    cancelling.add_argument(
        "--force", action="store_true", help="cancel it though it runs: what its worker still does with it is refused"
    )
    cancelling.set_defaults(command=_cancel)


def _add_list_to(actions: Commands) -> None:
    listing = add_action(actions, "ls", "list living tasks, the newest first")
    listing.add_argument(
        "--status", choices=get_args(Status), help="failed ones are listed until they are moved to the dead letters"
    )
    listing.add_argument("--queue", metavar="QUEUE", help="of this queue only")
    listing.add_argument("--name", metavar="NAME", help="of this task function only")
    listing.add_argument("--limit", type=_limit, default=20, metavar="N", help=f"up to {MOST}; default: %(default)s")
    listing.add_argument("--cursor", metavar="CURSOR", help="go on where an earlier list ended")
    listing.set_defaults(command=_list)


def _add(actions: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary)
    parser.add_argument("id", metavar="ID", help=_ID)
    return parser


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST}")
    return int(text)


def _list(chosen: argparse.Namespace) -> None:
    answer = _pages(chosen)
    if said(chosen, answer):
        return
    more = answer["next"]
    if answer["tasks"]:
        say(task_lists.lines(answer))
    elif more is None:
        is_any = any((chosen.status, chosen.queue, chosen.name))
        say(f"{'no living task matches' if is_any else 'there are no living tasks'} in {answer['database']}")
    if task_lists.is_cut(answer):
        say("\nlong ids are cut: --json has all of them")
    if more is not None:
        found = "there are more" if answer["tasks"] else "none found so far"
        say(f"\n{found}: go on with the same options and --cursor {more}")


def _pages(chosen: argparse.Namespace) -> Document:
    """Return one answer with what was on the pages, up to the limit."""
    given = {name: getattr(chosen, name) for name in ("status", "queue", "name", "cursor")}
    event: Document = {"op": "task.list", **{name: value for name, value in given.items() if value is not None}}
    answer: Document = {}
    tasks: list[Document] = []
    for _ in range(MAX_PAGES):
        answer = answered(chosen, event | {"limit": min(MAX_LIMIT, chosen.limit - len(tasks))})
        tasks += answer["tasks"]
        if answer["next"] is None or len(tasks) >= chosen.limit:
            break
        event["cursor"] = answer["next"]
    return answer | {"tasks": tasks}


def _show(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "task.show", "id": chosen.id})
    if said(chosen, answer):
        return
    log = answer["task"]["attempt_log"]
    say(facts(task_text.header(answer)))
    say(f"\n{task_text.log(log)}" if log else "\nno attempt is logged")


def _explain(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "task.explain", "id": chosen.id})
    if said(chosen, answer):
        return
    explained = answer["explanation"]
    kept = ", a dead letter" if explained["is_dead_letter"] else ""
    say(f"task {clean(explained['task_id'])} is {explained['status']}{kept}:\n")
    say(points([reason["message"] for reason in explained["reasons"]]))


def _retry(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "task.retry", "id": chosen.id})
    if not said(chosen, answer):
        say(task_text.hurried(answer))


def _cancel(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "task.cancel", "id": chosen.id, "force": chosen.force})
    if not said(chosen, answer):
        say(task_text.cancelled(answer))
