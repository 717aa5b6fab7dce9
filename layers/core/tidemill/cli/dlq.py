"""``tidemill dlq``: list, show, redrive, purge, export and restore dead letters.

All but ``restore`` work on a MongoDB URI or through the operate function.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from tidemill.admin.requests import MAX_DEAD_LETTERS, MAX_LIMIT, MAX_PER_SEC, MIN_PER_SEC
from tidemill.cli import dlq_view, task_view
from tidemill.cli.dlq_paging import (
    ID_HELP,
    Answers,
    add_filters_to,
    add_selection_to,
    build_selections,
    fall_back_to_stderr,
    hint_to_continue,
    is_stderr_terminal,
    parse_count,
    read_filters,
    report_partial_result,
    run_pages,
    show_progress,
)
from tidemill.cli.operations import (
    Document,
    add_action,
    add_function_to,
    add_limit_to,
    call_operation,
    call_pages,
    open_database,
    print_json_if_asked,
)
from tidemill.cli.output import Commands, format_facts, print_text
from tidemill.cli.signals import warn
from tidemill.clock import ServerClock
from tidemill.dead_letters.export_format import restore
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import TidemillError
from tidemill.store import tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.text import format_time


class NotExportedError(TidemillError):
    """Dead letters are left that are not exported."""


class NotRestoredError(TidemillError):
    """Files are left that were not restored."""


class NotConfirmedError(TidemillError):
    """The destruction of dead letters was not confirmed."""


class NotRedrivenError(TidemillError):
    """Selected dead letters are left that were not redriven."""


def add_to(commands: Commands) -> None:
    """Add ``dlq`` with its sub-commands."""
    dlq = commands.add_parser(
        "dlq", help="list, show, redrive, purge, export and restore dead letters", allow_abbrev=False
    )
    add_function_to(dlq, default=None)
    actions = dlq.add_subparsers(required=True, metavar="ACTION")
    _add_list_to(actions)
    _add_redrive_to(actions)
    _add_purge_to(actions)
    _add_export_to(actions)


def _add_list_to(actions: Commands) -> None:
    """Add ``ls`` and ``show``."""
    parser = add_action(actions, "ls", "list groups of dead letters by their reason, or single dead letters")
    add_filters_to(parser)
    parser.add_argument("--redriven", action="store_true", help="list redriven dead letters instead of open ones")
    parser.add_argument("--items", action="store_true", help="list single dead letters; implied by any filter")
    add_limit_to(parser)
    parser.set_defaults(command=_list)
    parser = add_action(actions, "show", "show a dead letter, its attempts, and the other dead letters of its task")
    parser.add_argument("id", metavar="ID", help=ID_HELP)
    parser.add_argument(
        "--redrives", type=parse_count, metavar="N", help="dead letter after N redrives; default: the newest"
    )
    parser.set_defaults(command=_show)


def _add_redrive_to(actions: Commands) -> None:
    """Add ``redrive``."""
    parser = add_action(actions, "redrive", "run dead letters again from the beginning, oldest first")
    add_selection_to(parser)
    parser.add_argument(
        "--rate", type=_parse_rate, metavar="N", help="make N tasks due per second, instead of all at once"
    )
    parser.add_argument("--drop-expiry", action="store_true", help="also start tasks after their expiry time")
    parser.set_defaults(command=partial(_redrive, refuse=parser.error))


def _add_purge_to(actions: Commands) -> None:
    """Add ``purge``."""
    parser = add_action(actions, "purge", "destroy dead letters, including redriven ones")
    add_selection_to(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.set_defaults(command=partial(_purge, refuse=parser.error))


def _add_export_to(actions: Commands) -> None:
    """Add ``export`` and ``restore``."""
    parser = add_action(actions, "export", "copy dead letters that are not exported yet to the bucket, as archive does")
    parser.set_defaults(command=_export)
    parser = add_action(actions, "restore", "restore exported dead letters from files, on MONGODB_URI only")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="an unchanged object of the bucket")
    parser.set_defaults(command=_restore)


def _parse_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not MIN_PER_SEC <= rate <= MAX_PER_SEC:
        raise argparse.ArgumentTypeError(f"must be a number from {MIN_PER_SEC:g} to {MAX_PER_SEC:.0f}")
    return rate


def _list(arguments: argparse.Namespace) -> None:
    if read_filters(arguments) or arguments.items or arguments.redriven or arguments.cursor is not None:
        _list_dead_letters(arguments)
    else:
        _list_groups(arguments)


def _list_groups(arguments: argparse.Namespace) -> None:
    answer = call_operation(arguments, {"op": "dlq.groups", "limit": min(arguments.limit, MAX_LIMIT)})
    if print_json_if_asked(arguments, answer):
        return
    newest = answer["sampled_newest"]
    among = "in" if newest is None else f"among the newest {newest} dead letters of"
    if not answer["groups"]:
        print_text(f"there are no open dead letters {among} {answer['database']}")
        return
    print_text(dlq_view.format_groups(answer))
    print_text(f"\n{dlq_view.format_total(answer)}")


def _list_dead_letters(arguments: argparse.Namespace) -> None:
    event = {"op": "dlq.list", "redriven": arguments.redriven, **read_filters(arguments)}
    answer = call_pages(arguments, event, "dead_letters")
    if print_json_if_asked(arguments, answer):
        return
    cursor = answer["next"]
    if answer["dead_letters"]:
        print_text(dlq_view.format_dead_letters(answer))
        if dlq_view.has_cut_id(answer):
            print_text("\nlong ids are cut: --json prints whole ids")
    elif cursor is None:
        kind = "redriven" if arguments.redriven else "open"
        print_text(f"no {kind} dead letter matches in {answer['database']}")
    if cursor is not None:
        state = "there are more" if answer["dead_letters"] else "no match so far"
        print_text(f"\n{state}: continue with the same options and --cursor {cursor}")


def _show(arguments: argparse.Namespace) -> None:
    number = {} if arguments.redrives is None else {"redrives": arguments.redrives}
    answer = call_operation(arguments, {"op": "dlq.show", "id": arguments.id, **number})
    if print_json_if_asked(arguments, answer):
        return
    log = answer["letter"]["attempt_log"]
    print_text(format_facts(dlq_view.describe_dead_letter(answer)))
    print_text(f"\n{task_view.format_log(log)}" if log else "\nno attempt is logged")
    if answer["other_failures"]:
        print_text(f"\nother dead letters of the task:\n\n{dlq_view.format_other_dead_letters(answer)}")


def _redrive(arguments: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    options: Document = {"op": "dlq.redrive", "drop_expiry": arguments.drop_expiry}
    if arguments.rate is not None:
        options["per_sec"] = arguments.rate
    events = [options | selection for selection in build_selections(arguments, refuse=refuse)]
    answers = (
        _run_dry(arguments, events, count_field="redriven") if arguments.dry_run else _run_redrives(arguments, events)
    )
    summary = partial(dlq_view.describe_redrive, answers.document, rate=arguments.rate, is_dry_run=arguments.dry_run)
    with fall_back_to_stderr(lambda: () if arguments.dry_run else summary()):
        if not arguments.json:
            print_text("\n".join(summary()))
        elif answers.document:
            print_json_if_asked(arguments, answers.document)
    left = sum(answers.document.get("refused", {}).values()) + answers.failed
    if left and not arguments.dry_run:
        raise NotRedrivenError(f"{left} of the selected dead letters could not be redriven")


def _run_dry(arguments: argparse.Namespace, events: list[Document], *, count_field: str) -> Answers:
    answers = Answers(count_field)
    with show_progress("checking", total=arguments.limit) as step:
        dry_runs = [event | {"dry_run": True} for event in events]
        run_pages(arguments, dry_runs, answers, limit=arguments.limit, step=step)
    return answers


def _run_redrives(arguments: argparse.Namespace, events: list[Document]) -> Answers:
    answers = Answers("redriven")
    total = None
    if is_stderr_terminal() and not arguments.ids:
        total = _run_dry(arguments, events, count_field="redriven").count
    reporting = report_partial_result(answers, "redriven", ends=lambda: _explain_rest(arguments, answers))
    with reporting, show_progress("redriving", total=total) as step:
        run_pages(arguments, events, answers, limit=arguments.limit, step=step)
    return answers


def _explain_rest(arguments: argparse.Namespace, answers: Answers) -> list[str]:
    """Return sentences on a redrive that stopped early: interrupted redrives, due times, and the command to repeat."""
    completion = ["the next archive after a minute completes interrupted redrives"] if answers.unanswered else []
    if arguments.rate is None:
        return [*completion, hint_to_continue(arguments)]
    hint = f"{hint_to_continue(arguments)}; the rate starts over from now"
    if answers.began_at is None:
        return [*completion, hint]
    length = timedelta(seconds=(answers.count + answers.unanswered) / arguments.rate)
    until = format_time(datetime.fromisoformat(answers.began_at) + length)
    return [*completion, f"redriven tasks become due until {until} UTC", f"{hint}: wait until then to keep the rate"]


def _purge(arguments: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    events = [{"op": "dlq.purge", **selection} for selection in build_selections(arguments, refuse=refuse)]
    dry_run = _run_dry(arguments, events, count_field="purged")
    if arguments.dry_run or not dry_run.count:
        _print_purge(arguments, dry_run.document, "would be destroyed")
        return
    if not arguments.yes:
        _confirm(dry_run.document)
    answers = Answers("purged")
    reporting = report_partial_result(answers, "destroyed", ends=lambda: [hint_to_continue(arguments)])
    with reporting, show_progress("destroying", total=dry_run.count) as step:
        # At most as many as were confirmed, even if more dead letters match by now.
        run_pages(arguments, events, answers, limit=dry_run.count, step=step)
    # This run ends before the last dead letters that the dry run examined: the larger count holds.
    kept = max(result.document.get("in_progress", 0) for result in (dry_run, answers))
    total = answers.document and answers.document | {"in_progress": kept}
    with fall_back_to_stderr(lambda: dlq_view.describe_purge(total, "destroyed")):
        _print_purge(arguments, total, "destroyed")


def _confirm(dry_run: Document) -> None:
    """Ask for the number of dead letters to be destroyed.

    Raises:
        NotConfirmedError: Another text was typed, or stdin is not a terminal.
    """
    for line in dlq_view.describe_purge(dry_run, "would be destroyed"):
        warn(line)
    if sys.stdin is None or not sys.stdin.isatty():
        raise NotConfirmedError("cannot ask for confirmation without a terminal: --yes destroys them without asking")
    print(f"type {dry_run['purged']} to destroy them: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    if sys.stdin.readline().strip() != str(dry_run["purged"]):
        raise NotConfirmedError("the number does not match: nothing was destroyed")


def _print_purge(arguments: argparse.Namespace, total: Document, verb: str) -> None:
    if arguments.json and total:
        print_json_if_asked(arguments, total)
    elif not arguments.json:
        print_text("\n".join(dlq_view.describe_purge(total, verb)))


def _export(arguments: argparse.Namespace) -> None:
    answers = Answers("exported")
    with report_partial_result(answers, "exported"):
        answer = _run_exports(arguments, answers)
    total = answers.document | {"left": answer["left"]}
    dead_letters = "dead letter" if total["exported"] == 1 else "dead letters"
    sentence = f"{total['exported']} {dead_letters} of {total['database']} exported"
    with fall_back_to_stderr(lambda: [sentence]):
        if not print_json_if_asked(arguments, total):
            print_text(sentence)
    if total["left"]:
        raise NotExportedError(dlq_view.describe_unexported(total))


def _run_exports(arguments: argparse.Namespace, answers: Answers) -> Document:
    """Export page by page; return the last answer: nothing is left, or the last call exported and refused nothing."""
    event = {"op": "dlq.export", "limit": MAX_DEAD_LETTERS}
    answers.unanswered = MAX_DEAD_LETTERS
    answer = call_operation(arguments, event)
    answers.add(answer)
    with show_progress("exporting", total=answer["exported"] + answer["left"]) as step:
        step(answer["exported"] + answer["refused"])
        while answer["left"] and (answer["exported"] or answer["refused"]):
            answers.unanswered = MAX_DEAD_LETTERS
            answer = call_operation(arguments, event)
            answers.add(answer)
            step(answer["exported"] + answer["refused"])
    return answer


def _restore(arguments: argparse.Namespace) -> None:
    if arguments.function is not None:
        raise NotRestoredError("restore works on MONGODB_URI only: leave out --function")
    db = open_database()
    dead, clock = open_tasks(db, DEAD_LETTERS), ServerClock(db)
    results: list[Document] = []
    for file in arguments.files:
        try:
            results.append(_restore_file(file, dead, clock))
        except (TidemillError, OSError) as error:
            reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
            warn(f"{file}: {reason}")
    with fall_back_to_stderr(lambda: map(dlq_view.describe_restored, results)):
        if not print_json_if_asked(arguments, {"files": results, "database": db.name}):
            for result in results:
                print_text(dlq_view.describe_restored(result))
    if len(results) < len(arguments.files):
        failed = len(arguments.files) - len(results)
        raise NotRestoredError(f"{failed} of {len(arguments.files)} files were not restored")


def _restore_file(file: Path, dead: Tasks, clock: ServerClock) -> Document:
    restored = restore(dead, file.read_bytes(), now=clock.now())
    if restored is None:
        return {"file": str(file), "restored": False}
    return {"file": str(file), "restored": True, "id": tasks.format_id(restored.task), "redrives": restored.redrives}
