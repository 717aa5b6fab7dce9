"""A program: an executor that runs the functions it is told to, each on a thread, and is there to be killed.

``python -m tests.features.isolation.an_executor alone|forked PACKAGE NAME FOLDER [NAME FOLDER ...]``. Once all run it
writes the id of its helper and, where it was told to fork, of the fork, which does nothing and holds what the executor
held.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.features.isolation.runs import PATIENT, Trace, a_run_spec, begin, helper_of
from tidemill.runner.process_pool import ProcessPool


def main(kind: str, package: str, *runs: str) -> None:
    """Begin the runs, tell, and wait for the end."""
    process_pool = ProcessPool(package, directory=Path.cwd(), start_within=PATIENT, begin_within=PATIENT)
    for name, folder in zip(runs[::2], runs[1::2], strict=True):
        trace = Trace(Path(folder))
        begin(process_pool, a_run_spec(name, {"trace": trace.path}))
        trace.pids()
    told = [helper_of(process_pool)]
    if kind == "forked":
        told.append(os.fork())
    if told[-1] != 0:
        sys.stdout.write(" ".join(map(str, told)) + "\n")
        sys.stdout.flush()
    time.sleep(1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
