"""What is said at the end: six execution logs, the dead letters, the totals, and whether the account balances."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from demo.aws import MAX_EXECUTORS, Aws
from demo.front import Front
from demo.ledger import Account
from demo.receiver import Receiver
from demo.scenario import BEHAVIOURS
from tidemill.model import TaskId

Story = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All there is to tell of a run; ``stories`` are the documents of the accepted tasks."""

    account: Account
    front: Front
    aws: Aws
    receiver: Receiver
    stories: Mapping[TaskId, Story]
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """Return the run as one JSON object."""
        account, counts = self.account, self.aws.counts
        attempts = Counter(line["status"] for story in self.stories.values() for line in story["attempt_log"])
        return {
            "accepted": account.accepted,
            "done": account.ended["done"],
            "cancelled": account.ended["cancelled"],
            "dead_letters": account.ended["dead letter"],
            "lost": len(account.lost),
            "ended_elsewhere": len(account.elsewhere),
            "not_asked_for": len(account.unasked),
            "dead_letters_by_reason": dict(sorted(account.dead_letters.items())),
            "refused": sum(status >= 400 for _, status in self.front.answers),
            "runs": attempts.total(),
            "runs_by_status": dict(sorted(attempts.items())),
            "first_runs": sum(bool(story["attempt_log"]) for story in self.stories.values()),
            "retries": sum(max(story["attempts"] - 1, 0) for story in self.stories.values()),
            "timed_out": attempts["timed_out"],
            "executors_started": counts["started"],
            "executors_died": counts["killed"] + counts["recycled"],
            "executors_killed": counts["killed"],
            "executors_recycled": counts["recycled"],
            "executors_raised": counts["raised"],
            "reclaimed": counts["reclaimed"],
            "deliveries": len(self.receiver.deliveries),
            "delivered_again": self.receiver.repeated,
            "seconds": round(self.seconds, 1),
        }

    def verdict(self) -> str:
        """Return the one sentence that says whether all is accounted for."""
        account = self.account
        if account.is_balanced:
            ended = account.ended
            return (
                f"All {account.accepted} accepted tasks are accounted for: {ended['done']} done, "
                f"{ended['cancelled']} cancelled, {ended['dead letter']} dead letters; none is lost."
            )
        problems = {
            "not in one final place": [f"{task_id} ({where})" for task_id, where in account.lost.items()],
            "ended otherwise than they had to": [f"{task_id} ({how})" for task_id, how in account.elsewhere.items()],
            "stored without having been accepted": account.unasked,
        }
        told = [f"{len(ids)} {what}: {_listed(ids)}" for what, ids in problems.items() if ids]
        return f"The {account.accepted} accepted tasks are not all accounted for; {'; '.join(told)}."


def show(console: Console, report: Report) -> None:
    """Print it all."""
    console.print()
    console.print(_samples(report))
    console.print()
    console.print(_logs(report))
    console.print(_dead_letters(report))
    console.print(_totals(report))
    console.print(report.verdict(), style="bold green" if report.account.is_balanced else "bold red", soft_wrap=True)


def _samples(report: Report) -> str:
    answers = ", ".join(f"{name} {status}" for name, status in report.front.answers)
    return f"[bold]Answers to the events of events/[/bold] (example.com is the receiver here): {answers}"


def _logs(report: Report) -> Table:
    table = _table("Execution logs: of each behaviour the task with the shortest log")
    table.add_column("task", no_wrap=True)
    table.add_column("attempt", justify="right")
    table.add_column("status", no_wrap=True)
    table.add_column("duration", justify="right", no_wrap=True)
    table.add_column("note")
    for behaviour, story in _examples(report).items():
        titles = [behaviour, f"[dim]{_task_id(story)}"]
        lines = [
            (str(line["attempt"]), line["status"], f"{line['duration_ms']} ms", line["note"])
            for line in story["attempt_log"]
        ]
        for title, line in itertools.zip_longest(titles, lines):
            table.add_row(title, *(line or ()))
        table.add_section()
    return table


def _examples(report: Report) -> dict[str, Story]:
    """Return of each behaviour the story with the shortest log: one that no other task's crash got into."""
    examples: dict[str, Story] = {}
    for behaviour in dict.fromkeys(one.name for one in BEHAVIOURS):
        ids = [task_id for task_id, one in report.front.accepted.items() if one.behaviour == behaviour]
        told = [report.stories[task_id] for task_id in ids if task_id in report.stories]
        if told:
            examples[behaviour] = min(told, key=lambda story: len(story["attempt_log"]))
    return examples


def _task_id(story: Story) -> TaskId:
    return story["_id"]["task"] if isinstance(story["_id"], dict) else story["_id"]


def _dead_letters(report: Report) -> Table:
    letters = [story for story in report.stories.values() if "fingerprint" in story]
    groups = Counter(letter["fingerprint"] for letter in letters)
    examples = {letter["fingerprint"]: letter for letter in letters}
    table = _table("Dead letters, by fingerprint")
    table.add_column("number", justify="right")
    table.add_column("reason", no_wrap=True)
    table.add_column("code", no_wrap=True)
    table.add_column("last error of one of them")
    for fingerprint, count in groups.most_common():
        letter = examples[fingerprint]
        table.add_row(str(count), letter["reason"], letter["error"]["code"], letter["error"]["message"])
    return table


def _totals(report: Report) -> Table:
    numbers = report.numbers()
    table = _table("Totals", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    by_status = ", ".join(f"{count} {status}" for status, count in numbers["runs_by_status"].items())
    repeated = numbers["runs"] - numbers["first_runs"] - numbers["retries"]
    table.add_row("runs", f"{numbers['runs']}: {by_status}")
    table.add_row(
        "",
        f"= {numbers['first_runs']} tasks, once each, + {numbers['retries']} retries + {repeated} runs repeated "
        "because their executor died; the first such loss of a task uses up no retry",
    )
    table.add_row(
        "executors",
        f"{numbers['executors_started']} started, at most {MAX_EXECUTORS} at a time: {numbers['executors_killed']} "
        f"killed by a task they ran, {numbers['executors_recycled']} ended by its handler because a function would not "
        "stop",
    )
    table.add_row(
        "reclaim",
        f"made {numbers['reclaimed']} tasks of dead executors pending again at once; from then on each of them runs in "
        "a process of its own, so that a task that kills takes no other with it",
    )
    table.add_row(
        "deliveries",
        f"{numbers['deliveries']} requests reached the receiver. It accepted {numbers['delivered_again']} webhooks "
        "more than once: their executor died between the answer and the write. Tasks run at least once",
    )
    table.add_row("time", f"{numbers['seconds']} s")
    return table


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_header=show_header,
        collapse_padding=True,
        pad_edge=False,
    )


def _listed(ids: Iterable[object]) -> str:
    names = [str(one) for one in ids]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
