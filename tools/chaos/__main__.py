"""``make chaos``: every section, one after the other; one summary, and ``build/chaos.json``.

The exit status is 0 only if every promise held, 1 if one did not, or a section could not do its work.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from rich.console import Console

from tests.command_line import WIDTH, Parser, said, server_version, stop_as_by_ctrl_c
from tests.machine import ROOT, machine
from tidemill import TidemillError
from tools.chaos import summary
from tools.chaos.alone import survived

Scale: TypeAlias = Literal["quick", "full"]

BUILD: Final = ROOT / "build"
FOUND: Final = "chaos.json"


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long a section may take."""

    full: float
    quick: float


SECTIONS: Final[Mapping[str, Seconds]] = MappingProxyType({
    "model": Seconds(300, 20),
    "crash_points": Seconds(110, 15),
    "failures": Seconds(80, 12),
    "replica_set": Seconds(180, 30),
    "load": Seconds(110, 12),
    "security": Seconds(30, 8),
})  # fmt: skip
"""The modules, in the order in which they are run."""


def main(arguments: Sequence[str]) -> int:
    """Attack; return the exit status."""
    options = Parser(prog="make chaos", description=__doc__)
    options.add_argument("--quick", action="store_true", help="in two minutes instead of fifteen")
    options.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=", ".join(SECTIONS))
    options.add_argument("--seed", type=int, help="what to repeat; another one each time without it")
    chosen = options.parse_args(arguments)
    stop_as_by_ctrl_c()
    seed = random.SystemRandom().randrange(2**31) if chosen.seed is None else chosen.seed
    try:
        names = [name for name in SECTIONS if name in (chosen.only or SECTIONS)]
        return chaos(names, "quick" if chosen.quick else "full", seed, BUILD)
    except TidemillError as error:
        return said(str(error), status=1)
    except KeyboardInterrupt:
        return said("stopped; nothing was written", status=130)


def chaos(names: Sequence[str], scale: Scale, seed: int, folder: Path) -> int:
    """Run the sections *names*, write what they found into *folder*, and print the summary; return the status."""
    found: dict[str, Any] = {"machine": machine(mongodb=server_version()), "scale": scale, "seed": seed}
    started = time.monotonic()
    sections = list(_sections(names, scale, seed))
    found |= {"seconds": round(time.monotonic() - started, 1), "sections": sections}
    folder.mkdir(exist_ok=True)
    (folder / FOUND).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    Console(width=max(Console().width, WIDTH)).print(summary.on_screen(found))
    return 0 if summary.survived(found) else 1


def _sections(names: Sequence[str], scale: Scale, seed: int) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(names, 1):
        seconds = getattr(SECTIONS[name], scale) if name in SECTIONS else 1.0
        said(f"attacking by {name}, {number} of {len(names)}, for {seconds:.0f} s, seed {seed}")
        yield survived(name, seconds=seconds, seed=seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
