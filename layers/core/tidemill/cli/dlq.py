"""``tidemill dlq``: list, show, redrive, purge, export and restore dead letters.

All but ``restore`` work on a MongoDB URI or through the operate function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click import argument, option

from tidemill.admin.requests import MAX_DEAD_LETTERS, MAX_LIMIT, MAX_PER_SEC, MIN_PER_SEC
from tidemill.admin.responses import (
    DeadLetterPage,
    DeadLetterResponse,
    ExportResponse,
    GroupsResponse,
    PurgeResponse,
    RedriveResponse,
)
from tidemill.cli import dlq_view
from tidemill.cli.commands import Group, add_options, build_function_option, is_json_wanted, parse_whole, read_function
from tidemill.cli.dlq_paging import (
    FILTER_OPTIONS,
    SELECTION_OPTIONS,
    ChangeT,
    Selection,
    Total,
    fall_back_to_stderr,
    hint_to_continue,
    is_stderr_terminal,
    read_filters,
    read_selection,
    report_partial_result,
    run_pages,
    show_progress,
)
from tidemill.cli.operations import (
    ID_HELP,
    PAGING_OPTIONS,
    Event,
    call_pages,
    open_database,
    print_answer,
    print_json_if_asked,
    print_rows,
)
from tidemill.cli.output import print_json, print_stderr, print_text, warn
from tidemill.clock import ServerClock
from tidemill.dead_letters.documents import MAX_REDRIVES
from tidemill.dead_letters.export_format import restore
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import TidemillError
from tidemill.store import tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.text import format_time


class IncompleteError(TidemillError):
    """Dead letters are left that the command should have changed."""


dlq: Final = Group("dlq", "List, show, redrive, purge, export and restore dead letters.", build_function_option())


@dlq.command("ls", example="tidemill dlq ls --name charge --since 6h")
@add_options(*FILTER_OPTIONS)
@option("--redriven", is_flag=True, help="List redriven dead letters instead of open ones.")
@option("--items", is_flag=True, help="List single dead letters; implied by any filter.")
@add_options(*PAGING_OPTIONS)
def _list(*, redriven: bool, items: bool, limit: int, cursor: str | None, **filters: str | datetime | None) -> None:
    """List groups of dead letters by their reason, or single dead letters."""
    given = read_filters(filters)
    if not (given or items or redriven or cursor is not None):
        print_answer({"op": "dlq.groups", "limit": min(limit, MAX_LIMIT)}, GroupsResponse, dlq_view.describe_groups)
        return
    page = call_pages({"op": "dlq.list", "redriven": redriven, **given}, DeadLetterPage, limit=limit, cursor=cursor)
    ids = [letter.id for letter in page.dead_letters]
    nothing = f"no {'redriven' if redriven else 'open'} dead letter matches"
    print_rows(page, ids, dlq_view.format_dead_letters, nothing=nothing)


@dlq.command("show", note=ID_HELP, example="tidemill dlq show 65f0c1a2b3d4e5f607182930")
@argument("task_id", metavar="ID")
@option(
    "--redrives",
    type=parse_whole(0, MAX_REDRIVES),
    metavar="N",
    help="Dead letter after N redrives of the task. Default: the newest.",
)
def _show(*, task_id: str, redrives: int | None) -> None:
    """Show a dead letter, its attempts, and the other dead letters of its task."""
    number = {} if redrives is None else {"redrives": redrives}
    print_answer({"op": "dlq.show", "id": task_id, **number}, DeadLetterResponse, dlq_view.describe_dead_letter)


def _parse_rate(text: str) -> float:
    with suppress(ValueError):
        if MIN_PER_SEC <= float(text) <= MAX_PER_SEC:
            return float(text)
    raise click.BadParameter(f"must be a number from {MIN_PER_SEC:g} to {MAX_PER_SEC:.0f}")


@dlq.command("redrive", note=ID_HELP, example="tidemill dlq redrive --name charge --dry-run")
@add_options(*SELECTION_OPTIONS)
@option("--rate", type=_parse_rate, metavar="N", help="Make N tasks due per second, instead of all at once.")
@option("--drop-expiry", is_flag=True, help="Also start tasks after their expiry time.")
def _redrive(*, rate: float | None, drop_expiry: bool, **options: Any) -> None:  # noqa: ANN401 - of read_selection
    """Run dead letters again from the beginning, oldest first."""
    selection = read_selection(**options)
    per_sec = {} if rate is None else {"per_sec": rate}
    events = selection.build_events("dlq.redrive", drop_expiry=drop_expiry, **per_sec)
    total = Total(RedriveResponse, lambda response: response.redriven)
    if selection.is_dry_run:
        _run_dry(events, total, selection)
    else:
        _run_redrives(events, total, selection, rate=rate)
    describe = partial(dlq_view.describe_redrive, total.response, rate=rate, is_dry_run=selection.is_dry_run)
    with fall_back_to_stderr(lambda: () if selection.is_dry_run else describe()):
        _print_total(total, describe)
    left = total.failed + (0 if total.response is None else sum(total.response.refused.values()))
    if left and not selection.is_dry_run:
        raise IncompleteError(f"{left} of the selected dead letters could not be redriven")


def _print_total(total: Total[RedriveResponse] | Total[PurgeResponse], describe: Callable[[], dlq_view.Lines]) -> None:
    if not is_json_wanted():
        print_text("\n".join(describe()))
    elif total.response is not None:
        print_json_if_asked(total.response)


def _run_dry(events: list[Event], total: Total[ChangeT], selection: Selection) -> None:
    with show_progress("checking", total=selection.limit) as step:
        dry_runs = [event | {"dry_run": True} for event in events]
        run_pages(dry_runs, total, limit=selection.limit, step=step)


def _run_redrives(
    events: list[Event], total: Total[RedriveResponse], selection: Selection, *, rate: float | None
) -> None:
    expected = None
    if is_stderr_terminal() and not selection.has_ids:
        dry_run = Total(RedriveResponse, lambda response: response.redriven)
        _run_dry(events, dry_run, selection)
        not_archived = {} if dry_run.response is None else dry_run.response.not_archived
        expected = dry_run.count + sum(not_archived.values())
    reporting = report_partial_result(total, "redriven", ends=lambda: _explain_rest(total, selection, rate=rate))
    with reporting, show_progress("redriving", total=expected) as step:
        run_pages(events, total, limit=selection.limit, step=step)


def _explain_rest(total: Total[RedriveResponse], selection: Selection, *, rate: float | None) -> list[str]:
    """Return sentences on a redrive that stopped early: interrupted redrives, due times, and the command to repeat."""
    completion = ["the next archive after a minute completes interrupted redrives"] if total.unanswered else []
    if rate is None:
        return [*completion, hint_to_continue(selection)]
    hint = f"{hint_to_continue(selection)}; the rate starts over from now"
    if total.began_at is None:
        return [*completion, hint]
    until = format_time(total.began_at + timedelta(seconds=(total.count + total.unanswered) / rate))
    return [*completion, f"redriven tasks become due until {until} UTC", f"{hint}: wait until then to keep the rate"]


@dlq.command("purge", note=ID_HELP, example="tidemill dlq purge --name charge --until 7d --dry-run")
@add_options(*SELECTION_OPTIONS)
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
def _purge(*, yes: bool, **options: Any) -> None:  # noqa: ANN401 - of read_selection
    """Destroy dead letters, including redriven ones."""
    selection = read_selection(**options)
    events = selection.build_events("dlq.purge")
    dry_run, total = (Total(PurgeResponse, lambda response: response.purged) for _ in range(2))
    _run_dry(events, dry_run, selection)
    if selection.is_dry_run or not dry_run.count:
        _print_total(dry_run, partial(dlq_view.describe_purge, dry_run.response, "would be destroyed"))
        return
    if not yes:
        _confirm(dry_run)
    reporting = report_partial_result(total, "destroyed", ends=lambda: [hint_to_continue(selection)])
    with reporting, show_progress("destroying", total=dry_run.count) as step:
        # At most as many as were confirmed, even if more dead letters match by now.
        run_pages(events, total, limit=dry_run.count, step=step)
    if total.response is not None and dry_run.response is not None:
        # This run ends before the last dead letters that the dry run examined: the larger count holds.
        kept = max(dry_run.response.in_progress, total.response.in_progress)
        total.response = total.response.model_copy(update={"in_progress": kept})
    describe = partial(dlq_view.describe_purge, total.response, "destroyed")
    with fall_back_to_stderr(describe):
        _print_total(total, describe)


def _confirm(dry_run: Total[PurgeResponse]) -> None:
    """Ask for the number of dead letters to be destroyed.

    Raises:
        IncompleteError: Another text was typed, or stdin is not a terminal.
    """
    for line in dlq_view.describe_purge(dry_run.response, "would be destroyed"):
        warn(line)
    if sys.stdin is None or not sys.stdin.isatty():
        raise IncompleteError("cannot ask for confirmation without a terminal: --yes destroys them without asking")
    print_stderr(f"type {dry_run.count} to destroy them: ", end="")
    if sys.stdin.readline().strip() != str(dry_run.count):
        raise IncompleteError("the number does not match: nothing was destroyed")


@dlq.command("export", example="tidemill dlq export --function tidemill-operate")
def _export() -> None:
    """Copy dead letters that are not exported yet to the bucket, as archive does."""
    total = Total(ExportResponse, lambda response: response.exported)
    with report_partial_result(total, "exported"):
        response = _run_exports(total)
    sentence = dlq_view.describe_export(response)
    with fall_back_to_stderr(lambda: [sentence]):
        if not print_json_if_asked(response):
            print_text(sentence)
    if response.left:
        raise IncompleteError(dlq_view.describe_unexported(response))


def _run_exports(total: Total[ExportResponse]) -> ExportResponse:
    """Export page by page until nothing is left, or a call exported and refused nothing; return the sum."""
    event = {"op": "dlq.export", "limit": MAX_DEAD_LETTERS}
    response, _ = total.call(event, limit=MAX_DEAD_LETTERS)
    with show_progress("exporting", total=response.exported + response.left) as step:
        step(response.exported + response.refused)
        while response.left and (response.exported or response.refused):
            response, _ = total.call(event, limit=MAX_DEAD_LETTERS)
            step(response.exported + response.refused)
    return total.response or response


@dlq.command(
    "restore", note="FILE is an unchanged object of the bucket.", example="tidemill dlq restore order-7.json.gz"
)
@argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE ...")
def _restore(*, files: tuple[Path, ...]) -> None:
    """Restore exported dead letters from files, on MONGODB_URI only."""
    if read_function() is not None:
        raise IncompleteError("restore works on MONGODB_URI only: leave out --function")
    db = open_database()
    dead, clock = open_tasks(db, DEAD_LETTERS), ServerClock(db)
    results: list[dlq_view.Restored] = []
    for file in files:
        try:
            results.append(_restore_file(file, dead, clock))
        except (TidemillError, OSError) as error:
            reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
            warn(f"{file}: {reason}")
    with fall_back_to_stderr(lambda: map(dlq_view.describe_restored, results)):
        if is_json_wanted():
            print_json({"files": results, "database": db.name})
        else:
            for result in results:
                print_text(dlq_view.describe_restored(result))
    if len(results) < len(files):
        raise IncompleteError(f"{len(files) - len(results)} of {len(files)} files were not restored")


def _restore_file(file: Path, dead: Tasks, clock: ServerClock) -> dlq_view.Restored:
    restored = restore(dead, file.read_bytes(), now=clock.now())
    if restored is None:
        return {"file": str(file), "restored": False}
    return {"file": str(file), "restored": True, "id": tasks.format_id(restored.task), "redrives": restored.redrives}
