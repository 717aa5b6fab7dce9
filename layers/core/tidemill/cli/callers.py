"""``tidemill ops caller``: list, grant and revoke the rights of API keys."""

from __future__ import annotations

from typing import Final

import click
from click import argument

from tidemill.admin.callers import CallerResponse, CallersResponse
from tidemill.cli.commands import Group
from tidemill.cli.operations import Event, call_operation, print_answer, print_json_if_asked
from tidemill.cli.output import clean, format_table, print_text
from tidemill.control.callers import CALLERS_CACHE_SEC, RIGHTS

_NOTE: Final = (
    "KEY is the id of an API key, like the output ApiKeyId of the stack; never its value. "
    f"RIGHT is one of: {', '.join(RIGHTS)}."
)
_KEY: Final = "k9p2s7x4q1"
_SOON: Final = f"the HTTP API sees it within {CALLERS_CACHE_SEC:g} s"

caller: Final = Group("caller", "List, grant and revoke the rights of API keys.")
_key_argument: Final = argument("key_id", metavar="KEY")
_right_argument: Final = argument("right", metavar="RIGHT", type=click.Choice(RIGHTS))


@caller.command("ls", example="tidemill ops caller ls")
def _list() -> None:
    """List the API keys that have rights."""
    response = call_operation({"op": "caller.list"}, CallersResponse)
    if print_json_if_asked(response):
        return
    if not response.callers:
        print_text(f"no API key has a right in {response.database}")
        return
    rows = [(view.key_id, ", ".join(view.rights)) for view in response.callers]
    print_text(format_table({"key": "word", "rights": "text"}, rows))


@caller.command("grant", note=_NOTE, example=f"tidemill ops caller grant {_KEY} queues.read")
@_key_argument
@_right_argument
def _grant(*, key_id: str, right: str) -> None:
    """Give a right to an API key."""
    _print_change({"op": "caller.grant", "key_id": key_id, "right": right})


@caller.command("revoke", note=_NOTE, example=f"tidemill ops caller revoke {_KEY} queues.read")
@_key_argument
@_right_argument
def _revoke(*, key_id: str, right: str) -> None:
    """Take a right from an API key."""
    _print_change({"op": "caller.revoke", "key_id": key_id, "right": right})


def _print_change(event: Event) -> None:
    print_answer(event, CallerResponse, _describe_change)


def _describe_change(response: CallerResponse) -> str:
    rights = ", ".join(response.caller.rights) or "no right"
    return f"API key {clean(response.caller.key_id)} has {rights} in {response.database} ({_SOON})"
