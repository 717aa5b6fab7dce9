"""``python -m tools.deployed``: take the drive; ``--outage SEC``: an outage; ``--check-stamp``: compare the stamp.

``--build FOLDER`` drives what `sam build` made of another project, which has the task functions of layers/tasks.
"""

from __future__ import annotations

import argparse
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from tools.deployed.drive import StoppedError, Tools, run_drive
from tools.deployed.emulator import ROOT
from tools.deployed.stamp import STAMP, compute_stamp, find_problem, write_stamp
from tools.deployed.table import Table

INTERRUPTED = 130


def main() -> int:
    """Return the exit status: 0 where all steps are ok, or the stamp is right."""
    parser = argparse.ArgumentParser(prog="python -m tools.deployed", description=__doc__)
    parser.add_argument("--check-stamp", action="store_true", help=f"only tell whether {STAMP} is up to date")
    parser.add_argument(
        "--outage", type=float, metavar="SEC", help="instead of the drive: let MongoDB be away while schedules fire"
    )
    parser.add_argument(
        "--build", type=Path, metavar="FOLDER", help="drive the build of another project, with no release before it"
    )
    chosen = parser.parse_args()
    if chosen.check_stamp:
        problem = find_problem(ROOT)
        if problem is not None:
            sys.stderr.write(f"tidemill: {problem}\n")
        return 0 if problem is None else 1
    end_by_signals()
    try:
        return _drive(chosen.outage, chosen.build)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: emulator, functions and MongoDB are gone\n")
        return INTERRUPTED


def end_by_signals() -> None:
    """Have whoever ends this process end it as Ctrl-C does: with all that it started."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _drive(outage_sec: float | None, build: Path | None) -> int:
    stamp = compute_stamp(ROOT)
    tools, table = _find_tools(build), Table()
    try:
        run_drive(tools, table, outage_sec=outage_sec, is_updated=outage_sec is None and build is None)
    except StoppedError as error:
        print(f"stopped: the other steps need {error}")
    if not table.end():
        return 1
    if outage_sec is not None or build is not None:
        return 0
    if compute_stamp(ROOT) != stamp:
        print(f"{STAMP} is left as it was: template, functions or layers changed meanwhile")
        return 1
    if write_stamp(ROOT, stamp):
        print(f"{STAMP} is new: commit it")
    return 0


def _find_tools(build: Path | None) -> Tools:
    """Return the tools, for this machine's processor, as Lambda calls it, and the Python of the functions' runtime."""
    architecture = "arm64" if platform.machine() in {"arm64", "aarch64"} else "x86_64"
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    runtime_python = ROOT / "build/runtime-venv/bin/python"
    command = [str(runtime_python), "-c", program]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return Tools(
        emulator_python=ROOT / "build/localemu-venv/bin/python",
        runtime_python=runtime_python,
        sam=ROOT / "build/sam-venv/bin/sam",
        build=(build or ROOT / "build/e2e").absolute(),
        architecture=architecture,
        python_version=version,
    )


if __name__ == "__main__":
    sys.exit(main())
