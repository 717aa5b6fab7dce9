"""``make figures``: the result of the last whole ``make bench``, kept here, and its table and plots in the docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools.bench import plots, table
from tools.bench.__main__ import BUILD, SECTIONS
from tools.pages import BENCHMARKS, replace_section

PUBLISHED: Final = Path(__file__).parent / "published"
FOUND: Final = "bench.json"
COMMAND: Final = "make figures"


def publish(found: Mapping[str, Any], *, to: Path = PUBLISHED, page: Path = BENCHMARKS) -> None:
    """Write *found* to the folder *to*, the table into *page*, and the plots beside *page*.

    Raises:
        ValueError: *found* is not the whole, or *page* has no place for it; nothing was written.
    """
    if why_not := _unfit(found):
        raise ValueError(why_not)
    told = replace_section(page.read_text(encoding="utf-8"), rendered(found), command=COMMAND)
    to.mkdir(exist_ok=True)
    (to / FOUND).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plots.draw(found, page.parent)
    page.write_text(told, encoding="utf-8")


def rendered(found: Mapping[str, Any]) -> str:
    """Return the part of the page that the command writes."""
    images = [f"![{plot.title}]({name}.svg)" for name, plot in plots.PLOTS.items()]
    return "\n\n".join([table.markdown(found), *images])


def _unfit(found: Mapping[str, Any]) -> str | None:
    measured = [section["name"] for section in found["sections"] if "failed" not in section]
    if found["scale"] != "full" or measured != list(SECTIONS):
        return "the page has all sections at full scale: run `make bench` without ARGS, and all of it must work"
    return None


def main() -> int:
    """Publish ``build/bench.json``; return the exit status."""
    try:
        publish(json.loads((BUILD / FOUND).read_text(encoding="utf-8")))
    except FileNotFoundError:
        sys.exit("tidemill: there is nothing to tell yet: run `make bench`")
    except ValueError as error:
        sys.exit(f"tidemill: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
