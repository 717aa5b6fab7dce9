"""What is said at the end: six execution logs, the dead letters, the totals, and whether the account balances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.aws import Aws
from demo.front import SAMPLES, Front
from demo.ledger import Account
from demo.receiver import Receiver
from tidemill.model import TaskId

WIDTH = 100
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
                f"{ended['cancelled']} cancelled, {ended['dead letter']} dead letters, none lost and none twice."
            )
        problems = {
            "in no final place, or in more than one": account.lost,
            "ended otherwise than it had to": account.elsewhere,
            "stored without having been accepted": account.unasked,
        }
        told = [f"{what}: {_listed(ids)}" for what, ids in problems.items() if ids]
        return f"The {account.accepted} accepted tasks are not all accounted for; {'; '.join(told)}."


def show(console: Console, report: Report) -> None:
    """Print it all."""
    console.print()
    console.print(_samples(report))
    console.print(_logs(report))
    console.print(_dead_letters(report))
    console.print(_totals(report))
    console.print()
    console.print(report.verdict(), style="bold green" if report.account.is_balanced else "bold red", soft_wrap=True)


def _samples(report: Report) -> str:
    answers = ", ".join(f"{name} {status}" for name, status in report.front.answers)
    return f"[bold]Answers to the events of events/[/bold] (example.com is the receiver here): {answers}"


def _logs(report: Report) -> Table:
    table = Table(title="Execution logs: the first accepted task of each kind", title_justify="left", width=WIDTH)
    table.add_column("task", width=25)
    table.add_column("attempt", justify="right")
    table.add_column("status", no_wrap=True)
    table.add_column("duration", justify="right", no_wrap=True)
    table.add_column("note")
    firsts: dict[str, TaskId] = {}
    for task_id, accepted in report.front.accepted.items():
        if accepted.behaviour != SAMPLES:
            firsts.setdefault(accepted.behaviour, task_id)
    for behaviour, task_id in sorted(firsts.items()):
        story = report.stories.get(task_id, {"attempt_log": []})
        for number, line in enumerate(story["attempt_log"]):
            title = ("", behaviour, f"[dim]{task_id}")[1 + number] if number < 2 else ""
            table.add_row(title, str(line["attempt"]), line["status"], f"{line['duration_ms']} ms", line["note"])
        table.add_section()
    return table


def _dead_letters(report: Report) -> Table:
    letters = [story for story in report.stories.values() if "fingerprint" in story]
    groups = Counter(letter["fingerprint"] for letter in letters)
    examples = {letter["fingerprint"]: letter for letter in letters}
    table = Table(title="Dead letters, by fingerprint", title_justify="left", width=WIDTH)
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
    table = Table(title="Totals", title_justify="left", show_header=False, width=WIDTH)
    table.add_column(no_wrap=True)
    table.add_column()
    by_status = ", ".join(f"{count} {status}" for status, count in numbers["runs_by_status"].items())
    table.add_row("runs", f"{numbers['runs']}: {by_status}; {numbers['retries']} of them retries")
    table.add_row(
        "executors",
        f"{numbers['executors_started']} started, {numbers['executors_killed']} killed by a task, "
        f"{numbers['executors_recycled']} ended by themselves over a function that would not stop",
    )
    table.add_row("reclaim", f"took {numbers['reclaimed']} tasks back from executors that died")
    table.add_row(
        "deliveries",
        f"{numbers['deliveries']} reached the receiver; {numbers['delivered_again']} webhooks were accepted there "
        "more than once (at least once is the promise)",
    )
    table.add_row("time", f"{numbers['seconds']} s")
    return table


def _listed(ids: Iterable[TaskId]) -> str:
    names = [str(one) for one in ids]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
