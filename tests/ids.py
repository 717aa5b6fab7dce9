"""Names for the cases of a test that are the same in every process."""

from __future__ import annotations

import re


def shown(value: object) -> str:
    """Return the representation of *value*, sets in order, and without the address that the default one has."""
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
