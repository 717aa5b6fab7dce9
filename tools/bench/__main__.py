"""``make bench``: every section, one after the other; one table, ``build/bench.json``, and the plots.

It is a measurement, not a test: the exit status is 0 also where a target is missed. It is 1 where a section failed,
which ends no other.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.command_line import WIDTH, Parser, said, server_version, stop_as_by_ctrl_c
from tests.machine import ROOT, machine
from tidemill import TidemillError
from tools.bench import plots, table
from tools.bench.alone import measured
from tools.bench.figures import Scale

SECTIONS: Final = (
    "enqueue",
    "floor",
    "counts",
    "idle",
    "growth",
    "contention",
    "primary",
    "latency",
    "arrivals",
    "startup",
    "archive",
)
"""The modules, in the order in which a reader wants them."""

BUILD: Final = ROOT / "build"


def main(arguments: Sequence[str]) -> int:
    """Measure; return the exit status."""
    options = Parser(prog="make bench", description=__doc__)
    options.add_argument("--quick", action="store_true", help="in 90 seconds instead of ten minutes")
    options.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    chosen = options.parse_args(arguments)
    stop_as_by_ctrl_c()
    try:
        names = [name for name in SECTIONS if name in (chosen.only or SECTIONS)]
        return bench(names, "quick" if chosen.quick else "full", BUILD)
    except TidemillError as error:
        return said(str(error), status=1)
    except KeyboardInterrupt:
        return said("stopped; nothing was written", status=130)


def bench(names: Sequence[str], scale: Scale, folder: Path) -> int:
    """Measure the sections *names*, write what they found into *folder*, and print the table; return the status."""
    found: dict[str, Any] = {"machine": machine(mongodb=server_version()), "scale": scale}
    started = time.monotonic()
    sections = list(_sections(names, scale))
    found |= {"seconds": round(time.monotonic() - started, 1), "sections": sections}
    _write(found, folder)
    Console(width=max(Console().width, WIDTH)).print(table.on_screen(found))
    return 1 if any("failed" in one for one in sections) else 0


def _sections(names: Sequence[str], scale: Scale) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(names, 1):
        said(f"measuring {name}, {number} of {len(names)}")
        yield measured(name, scale)


def _write(found: dict[str, Any], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    plots.draw(found, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
