"""Secrets that can be told anywhere again, also in base64, in hexadecimal or escaped."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Place: TypeAlias = Literal["log", "answer", "operator", "called", "object", "database"]
"""What a handler printed or raised, what its caller was answered, what an operator was told (by the function or the
command line), what AWS was called with beside objects, the objects in the bucket, and the documents."""

PLACES: Final[tuple[Place, ...]] = ("log", "answer", "operator", "called", "object", "database")
STORED: Final = frozenset[Place]({"database", "object"})
ANSWERED: Final = STORED | frozenset[Place]({"answer"})
TOLD: Final = ANSWERED | frozenset[Place]({"operator"})

ALLOWED: Final[Mapping[str, frozenset[Place]]] = MappingProxyType({
    "password": frozenset(),
    "wrong_password": frozenset(),
    "password_of_nobody": frozenset(),
    "malformed_password": frozenset(),
    "api_key": frozenset(),
    "authorization": frozenset(),
    "aws_secret_key": frozenset(),
    "aws_token": frozenset(),
    "aws_message": frozenset(),
    "signing_secret": frozenset(),
    "text_at_import": frozenset(),
    "field": frozenset({"answer"}),
    "payload_value": STORED,
    "payload_name": STORED,
    "refused_payload": STORED,
    "url_user": STORED,
    "url_query": STORED,
    "webhook_header": STORED,
    "webhook_body": STORED,
    "idempotency_key": STORED,
    "result": ANSWERED,
    "misfit_name": TOLD,
    "exception_text": TOLD,
})  # fmt: skip
"""Where each may be found. Of a payload, the name of a field that does not fit is part of the error that says so."""

EXPECTED: Final[Mapping[str, Place]] = MappingProxyType({
    "field": "answer",
    "payload_value": "object",
    "payload_name": "object",
    "refused_payload": "database",
    "url_user": "database",
    "url_query": "database",
    "webhook_header": "database",
    "webhook_body": "database",
    "idempotency_key": "database",
    "result": "answer",
    "misfit_name": "operator",
    "exception_text": "answer",
})  # fmt: skip
"""Where some are found for sure, or else what was searched is not what was said."""

_LENGTH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A *text* that no quoting leaves as it is, around a *core* that every quoting does."""

    name: str
    core: str

    @property
    def text(self) -> str:
        """Return what is given away."""
        return f"{self.core}@é'\"<%/:"

    def is_in(self, text: str) -> bool:
        """Tell whether *text* holds it in any form."""
        lowered = text.lower()
        return any(form in lowered for form in self._plain()) or any(form in text for form in self._in_base64())

    def _plain(self) -> Iterator[str]:
        yield self.core
        yield self.core[::-1]
        yield self.core.encode().hex()

    def _in_base64(self) -> Iterator[str]:
        """Yield the characters that depend on nothing else, wherever among others it begins."""
        for before in range(3):
            coded = base64.b64encode(b"\0" * before + self.core.encode()).decode()
            yield coded[-(-before * 8 // 6) : (before + len(self.core)) * 8 // 6]


def canaries(rng: random.Random) -> dict[str, Canary]:
    """Return one of each, by name."""
    letters = string.ascii_lowercase + string.digits
    return {name: Canary(name=name, core="".join(rng.choices(letters, k=_LENGTH))) for name in ALLOWED}


def leaks(made: Mapping[str, Canary], heard: Mapping[Place, str]) -> list[str]:
    """Return which were found where they may not be, or are not where they have to be, a sentence each."""
    found = {(name, place) for name, one in made.items() for place in PLACES if one.is_in(heard.get(place, ""))}
    spilt = [f"the {name} is in the {place}" for name, place in sorted(found) if place not in ALLOWED[name]]
    missed = [
        f"the {name} is not in the {place}, so nothing was searched there"
        for name, place in EXPECTED.items()
        if (name, place) not in found
    ]
    return spilt + missed
