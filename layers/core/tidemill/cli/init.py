"""``tidemill init``: write a project, or bring one to the installed version."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import click
from click import argument, option

from tidemill.cli import projects
from tidemill.cli.commands import Command
from tidemill.cli.output import clean, print_text, warn
from tidemill.cli.projects import Change, Plan

_TEMPLATE = "template.yaml"
_NEXT = "README.md has the next commands"


def _parse_folder(text: str) -> Path:
    """Return the folder *text*.

    Raises:
        BadParameter: *text* is empty, as a variable of the shell that is not set.
    """
    if not text:
        raise click.BadParameter("must name a folder")
    return Path(text)


@click.command(
    "init",
    cls=Command,
    help="Write a project that deploys tasks of your own into DIR, which may have files already. Overwrites no file.",
    example="tidemill init orders",
    note="Without DIR it is the current folder.",
)
@argument("folder", metavar="[DIR]", required=False, default=".", type=_parse_folder)
@option("--upgrade", is_flag=True, help="Bring the project to the installed version; keep files that you changed.")
@option("--dry-run", is_flag=True, help="Only show what would be written, an upgrade with its differences.")
def init(folder: Path, *, upgrade: bool, dry_run: bool) -> None:
    """Write the project in *folder*, or upgrade it."""
    release = projects.read_release()
    plan = (projects.plan_upgrade if upgrade else projects.plan_project)(folder, release)
    if not dry_run:
        plan.apply()
    for change in plan.changes:
        print_text(_describe(change))
        if dry_run and upgrade:
            for line in _list_differences(plan, change):
                print_text(line)
    print_text(_summarise(plan, upgrade=upgrade, dry_run=dry_run))
    if any(change.path == _TEMPLATE and change.action == "kept" for change in plan.changes) and not upgrade:
        warn(
            f"{folder / _TEMPLATE} was there before, so this project has no template of Tidemill; "
            "give it a folder of its own: tidemill init tidemill"
        )


def _describe(change: Change) -> str:
    reason = f": {change.reason}" if change.reason else ""
    return f"{change.action:<9} {clean(change.path)}{reason}"


def _list_differences(plan: Plan, change: Change) -> Iterator[str]:
    """Yield the lines of a unified difference between a file of the project and the text of *change*."""
    if change.action not in {"updated", "offered"} or change.text is None:
        return
    name = change.path.removesuffix(f".tidemill-{plan.version}")
    current = (plan.folder / name).read_text(encoding="utf-8", errors="replace")
    lines = difflib.unified_diff(
        current.splitlines(), change.text.splitlines(), fromfile=name, tofile=change.path, lineterm=""
    )
    for line in lines:  # a file may have characters that steer a terminal; blanks stay
        yield "".join(char if char.isprintable() else clean(char) or " " for char in line)


def _summarise(plan: Plan, *, upgrade: bool, dry_run: bool) -> str:
    written = sum(change.text is not None or change.action == "removed" for change in plan.changes)
    files = "1 file" if written == 1 else f"{written} files"
    if dry_run:
        return f"{files} would be written, of tidemill {plan.version}; nothing was changed"
    if not plan.changes:
        return f"this is a project of tidemill {plan.version}; nothing to do"
    return f"{files} written, of tidemill {plan.version}" + ("" if upgrade else f"; {_NEXT}")
