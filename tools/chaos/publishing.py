"""``make survival``: the result of the last whole ``make chaos``, kept here, and its summary in the docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools.chaos import summary
from tools.chaos.__main__ import BUILD, FOUND, SECTIONS
from tools.pages import CHAOS, replace_section

PUBLISHED: Final = Path(__file__).parent / "published"
COMMAND: Final = "make survival"


def publish(found: Mapping[str, Any], *, to: Path = PUBLISHED, page: Path = CHAOS) -> None:
    """Write *found* to the folder *to*, and the summary into *page*.

    Raises:
        ValueError: *found* is not the whole, was not survived, or *page* has no place for it; nothing was written.
    """
    if found["scale"] != "full" or [one["name"] for one in found["sections"]] != list(SECTIONS):
        raise ValueError("the page has all sections at full length: run `make chaos` without ARGS")
    if not summary.survived(found):
        raise ValueError("it was not survived: mend it first")
    told = replace_section(page.read_text(encoding="utf-8"), summary.markdown(found), command=COMMAND)
    to.mkdir(exist_ok=True)
    (to / FOUND).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page.write_text(told, encoding="utf-8")


def published() -> str:
    """Return the summary that the page must have."""
    return summary.markdown(json.loads((PUBLISHED / FOUND).read_text(encoding="utf-8")))


def main() -> int:
    """Publish ``build/chaos.json``; return the exit status."""
    try:
        publish(json.loads((BUILD / FOUND).read_text(encoding="utf-8")))
    except FileNotFoundError:
        sys.exit("tidemill: there is nothing to tell yet: run `make chaos`")
    except ValueError as error:
        sys.exit(f"tidemill: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
