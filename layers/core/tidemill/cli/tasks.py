"""``tidemill ops task``: list, show, explain, retry and cancel tasks. Payloads and results are never shown."""

from __future__ import annotations

from typing import Final, get_args

import click
from click import argument, option

from tidemill.admin.responses import CancelResponse, ExplanationResponse, RetryResponse, TaskPage, TaskResponse
from tidemill.cli import task_view
from tidemill.cli.commands import Group, add_options
from tidemill.cli.operations import ID_HELP, PAGING_OPTIONS, call_pages, print_answer, print_rows
from tidemill.cli.output import format_facts
from tidemill.model import Status

task: Final = Group("task", "List, show, explain, retry and cancel tasks.")
_ID: Final = "65f0c1a2b3d4e5f607182930"
_id_argument: Final = argument("task_id", metavar="ID")


@task.action("ls", example="tidemill ops task ls --status processing --queue eu")
@option(
    "--status",
    type=click.Choice(get_args(Status)),
    metavar="STATUS",
    help=f"Only this status: {', '.join(get_args(Status))}. Failed tasks soon become dead letters.",
)
@option("--queue", metavar="QUEUE", help="Only this queue.")
@option("--name", metavar="NAME", help="Only this task function.")
@add_options(*PAGING_OPTIONS)
def _list(*, limit: int, cursor: str | None, **filters: str | None) -> None:
    """List tasks that are not dead letters, newest first."""
    given = {name: value for name, value in filters.items() if value is not None}
    page = call_pages({"op": "task.list", **given}, TaskPage, limit=limit, cursor=cursor)
    nothing = "no task matches" if given else "there are no tasks"
    print_rows(page, [listed.id for listed in page.tasks], task_view.format_tasks, nothing=nothing)


@task.action("show", note=ID_HELP, example=f"tidemill ops task show {_ID}")
@_id_argument
def _show(*, task_id: str) -> None:
    """Show the state of a task and its attempts."""
    print_answer({"op": "task.show", "id": task_id}, TaskResponse, _describe_task)


def _describe_task(response: TaskResponse) -> str:
    facts = format_facts(task_view.describe_task(response.task, response))
    return f"{facts}\n\n{task_view.format_log(response.task.attempt_log)}"


@task.action("explain", note=ID_HELP, example=f"tidemill ops task explain {_ID}")
@_id_argument
def _explain(*, task_id: str) -> None:
    """Explain why a task is not running."""
    print_answer({"op": "task.explain", "id": task_id}, ExplanationResponse, task_view.describe_explanation)


@task.action("retry", note=ID_HELP, example=f"tidemill ops task retry {_ID}")
@_id_argument
def _retry(*, task_id: str) -> None:
    """Run a delayed or retrying task now."""
    print_answer({"op": "task.retry", "id": task_id}, RetryResponse, task_view.describe_retry)


@task.action("cancel", note=ID_HELP, example=f"tidemill ops task cancel {_ID} --force")
@_id_argument
@option("--force", is_flag=True, help="Cancel a running task at once; the result of its worker is refused.")
def _cancel(*, task_id: str, force: bool) -> None:
    """Cancel a task, or ask a running task to stop."""
    print_answer({"op": "task.cancel", "id": task_id, "force": force}, CancelResponse, task_view.describe_cancel)
