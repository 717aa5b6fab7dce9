"""Operations on the rights of API keys."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.admin import requests
from tidemill.admin.context import AdminContext
from tidemill.admin.responses import Response, View
from tidemill.control import callers
from tidemill.control.callers import Right


class CallerView(View):
    """API key with its rights; ``key_id`` is the id of the key, never its value."""

    key_id: str
    rights: tuple[str, ...]


class CallersResponse(Response):
    """Response of ``caller.list``: the API keys that have rights, by their ids."""

    callers: tuple[CallerView, ...]


class CallerResponse(Response):
    """Response of ``caller.grant`` and ``caller.revoke``: the API key after the change."""

    caller: CallerView


def list_callers(_: requests.CallerList, context: AdminContext) -> CallersResponse:
    """Return all API keys that have rights."""
    found = callers.load_rights(context.db)
    return CallersResponse(callers=tuple(_build_view(key_id, rights) for key_id, rights in found.items()))


def grant(request: requests.CallerGrant, context: AdminContext) -> CallerResponse:
    """Give a right to an API key.

    Raises:
        UnavailableError: MongoDB did not answer; a repeat is safe.
    """
    rights = callers.grant_right(context.db, request.key_id, request.right)
    return CallerResponse(caller=_build_view(request.key_id, rights))


def revoke(request: requests.CallerRevoke, context: AdminContext) -> CallerResponse:
    """Take a right from an API key.

    Raises:
        UnavailableError: MongoDB did not answer; a repeat is safe.
    """
    rights = callers.revoke_right(context.db, request.key_id, request.right)
    return CallerResponse(caller=_build_view(request.key_id, rights))


def _build_view(key_id: str, rights: Iterable[Right]) -> CallerView:
    return CallerView(key_id=key_id, rights=tuple(rights))
