"""``make figures``: what the last whole ``make bench`` found, kept beside this module and told in the README."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.bench import plots, table
from tests.bench.__main__ import BUILD, SECTIONS
from tests.machine import ROOT
from tests.readme import README, placed

PUBLISHED: Final = Path(__file__).parent / "published"
FOUND: Final = "bench.json"
COMMAND: Final = "make figures"


def publish(found: Mapping[str, Any], *, to: Path = PUBLISHED, readme: Path = README) -> None:
    """Write *found* and its plots to the folder *to*, and the table and the plots into *readme*.

    Raises:
        ValueError: It is not the whole, or *readme* has no place for it; nothing was written.
    """
    if why_not := _unfit(found):
        raise ValueError(why_not)
    told = placed(readme.read_text(encoding="utf-8"), rendered(found), command=COMMAND)
    to.mkdir(exist_ok=True)
    (to / FOUND).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plots.draw(found, to)
    readme.write_text(told, encoding="utf-8")


def rendered(found: Mapping[str, Any]) -> str:
    """Return the section of the README."""
    folder = PUBLISHED.relative_to(ROOT).as_posix()
    images = [f"![{plot.title}]({folder}/{name}.svg)" for name, plot in plots.PLOTS.items()]
    return "\n\n".join([table.markdown(found), *images])


def _unfit(found: Mapping[str, Any]) -> str | None:
    measured = [section["name"] for section in found["sections"] if "failed" not in section]
    if found["scale"] != "full" or measured != list(SECTIONS):
        return "the README tells of all sections at full scale: run `make bench` without ARGS, and all of it must work"
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
