"""``python -m tests.features.worker.brisk``: a worker of queue ``default`` with leases of 4 s and a permit of 3 s."""

from __future__ import annotations

import sys
import threading
import uuid
from datetime import timedelta

from tests.features.worker.workers import PACKAGE
from tidemill.bootstrap import deployment
from tidemill.executor.context import ExecutionOptions
from tidemill.executor.execution import work
from tidemill.executor.lifetime import WORKER_REMAINING, Worker
from tidemill.executor.maintenance import Maintenance, MaintenanceContext, MaintenanceTiming

LEASE = timedelta(seconds=4)
TIMING = MaintenanceTiming(permit_sec=3, renew_sec=1, pass_sec=0.5)


def main() -> None:
    """Work until killed; the first line of stdout is the name of the worker."""
    owner = f"brisk-{uuid.uuid4().hex[:8]}"
    runtime = deployment().make_worker_runtime(PACKAGE)
    context = MaintenanceContext(
        owner=owner,
        reclaim=deployment().make_reclaim_context("maintenance"),
        archive=deployment().make_archive_context("maintenance", put=None),
        timing=TIMING,
    )
    with Maintenance(context):
        sys.stdout.write(f"{owner}\n")
        sys.stdout.flush()
        options = ExecutionOptions(owner=owner, remaining=WORKER_REMAINING, queues=("default",))
        work(runtime, options, Worker(threading.Event(), lease=LEASE, extend_sec=1))


if __name__ == "__main__":
    main()
