"""The drive: which steps are taken, in which order, on how many deployments.

Three deployments are enough: the release before, the working tree over it, and other parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from tools.deployed import failing, operating, outage, using
from tools.deployed.api import Api, Load
from tools.deployed.database import NAME as DATABASE
from tools.deployed.database import Server, start_server
from tools.deployed.emulator import REGION, ROOT, Emulator
from tools.deployed.processes import find_processes_in
from tools.deployed.receiver import start_receiver
from tools.deployed.release import build_release, find_release_before
from tools.deployed.stack import Stack
from tools.deployed.table import SkippedError, Table
from tools.deployed.world import World, read_complaints

LOAD_AFTER_SEC: Final = 3.0
"""So long the load goes on once an update is complete."""


class StoppedError(Exception):
    """A step failed that all others need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a drive works with: programs, and what was built of the working tree for whom."""

    emulator_python: Path
    runtime_python: Path
    sam: Path
    build: Path
    architecture: str
    python_version: str


def run_drive(tools: Tools, table: Table, *, outage_sec: float | None, is_updated: bool) -> None:
    """Take all steps; what came of them is in *table*.

    With *outage_sec* only an outage of MongoDB of so many seconds, on the build. Where it *is_updated*, the release
    before is deployed first.

    Raises:
        StoppedError: One failed that others need.
    """
    before = _build_before(tools, table) if is_updated else None
    emulator = Emulator(python=tools.emulator_python, runtime_python=tools.runtime_python)
    began_at = time.monotonic()
    with emulator, start_server(emulator.folder) as server, start_receiver() as receiver:
        table.take("start the emulator and MongoDB", lambda: "with passwords", began_at=began_at)
        stack = Stack(emulator=emulator, sam=tools.sam)
        try:
            drive = Drive(table=table, tools=tools, stack=stack)
            parameters = drive.prepare(server)
            drive.deploy_first(before or tools.build, parameters, is_before=before is not None)
            world = World(
                emulator=emulator,
                server=server,
                receiver=receiver,
                stack=stack,
                api=Api(url=stack.api_url(), key=stack.api_key()),
            )
            if outage_sec is None:
                drive.run(world, parameters, is_before=before is not None)
            else:
                drive.run_outage(world, outage_sec)
        finally:
            if any(row.result == "FAILED" for row in table.rows):
                print("\nThe functions' last warnings and errors:", *read_complaints(emulator.folder), sep="\n  ")
    table.take("nothing is left on this machine", partial(_check_ends, emulator.folder, server.pid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """One drive through one stack."""

    table: Table
    tools: Tools
    stack: Stack

    def prepare(self, server: Server) -> dict[str, str]:
        """Make what a user has before a deployment: a bucket for code and a secret; return the parameters."""
        self.stack.client("s3").create_bucket(
            Bucket=self.stack.bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        secret = self.stack.client("secretsmanager").create_secret(
            Name=operating.SECRET, SecretString=server.add_user("first")
        )
        return {"MongoSecretArn": secret["ARN"], "MongoDatabase": DATABASE}

    def deploy_first(self, build: Path, parameters: dict[str, str], *, is_before: bool) -> None:
        """Deploy into nothing."""
        what = "the release before" if is_before else "the build"
        self._need(f"deploy {what}", lambda: self._deploy(build, parameters))

    def run(self, world: World, parameters: dict[str, str], *, is_before: bool) -> None:
        """Take all steps on a stack that is deployed."""
        self._need("first reclaim by hand makes the indexes", partial(operating.check_first_reclaim, world))
        # Tells the API which tasks there are: until an executor has run once, it refuses all.
        self._need("execute by hand", partial(using.check_execute_by_hand, world))
        self._update_under_load(world, parameters, is_before=is_before)
        self._update_parameters(world, parameters)
        self._need("configure the execute function by Lambda's API", partial(operating.allow_loopback, world))
        poison_at, sent_at = time.monotonic(), failing.send_poison(world)
        for step, check in STEPS:
            self.table.take(step, partial(check, world))
        tick_at, delayed = time.monotonic(), using.enqueue_for_tick(world)
        for step, check in COMMANDS:
            self.table.take(step, partial(check, world))
        tick = partial(using.check_tick, world, delayed)
        self.table.take("the schedule's tick runs what nobody woke for", tick, began_at=tick_at)
        for step, check in LAST_STEPS:
            self.table.take(step, partial(check, world))
        poison = partial(failing.check_poison, world, sent_at)
        self.table.take("an event that cannot be stored arrives in the queue", poison, began_at=poison_at)
        self.table.take("delete the stack", partial(operating.delete_stack, world))

    def run_outage(self, world: World, outage_sec: float) -> None:
        """Take the steps about an outage on a stack that is deployed."""
        self._need("first reclaim by hand makes the indexes", partial(operating.check_first_reclaim, world))
        self._need("execute by hand", partial(using.check_execute_by_hand, world))
        step = "MongoDB is away while schedules fire"
        self.table.take(step, partial(outage.check_outage, world, outage_sec=outage_sec))
        self.table.take("delete the stack", partial(operating.delete_stack, world))

    def _update_under_load(self, world: World, parameters: dict[str, str], *, is_before: bool) -> None:
        step = "deploy the working tree over it, under load"
        if not is_before:
            self.table.take(step, _skip_without_release)
            return
        load = Load(api=world.api)
        load.start()
        try:
            self._need(step, lambda: self._deploy(self.tools.build, parameters))
            time.sleep(LOAD_AFTER_SEC)
        finally:
            load.stop()
        self.table.take("of what was enqueued meanwhile", partial(operating.check_load, world, load))

    def _update_parameters(self, world: World, parameters: dict[str, str]) -> None:
        before = operating.read_retention(world)
        others = parameters | {
            "Concurrency": str(failing.SLOTS),
            "MaxExecutors": str(failing.EXECUTORS),
            "RetentionDays": str(operating.RETENTION_DAYS),
        }
        self._need("update Concurrency, MaxExecutors, RetentionDays", lambda: self._deploy(self.tools.build, others))
        self.table.take("the new parameters are in force", partial(operating.check_parameters, world, before))

    def _deploy(self, build: Path, parameters: dict[str, str]) -> str:
        self.stack.deploy(build, parameters)
        return f"{len(self.stack.resources())} resources"

    def _need(self, step: str, action: Callable[[], str]) -> None:
        if not self.table.take(step, action):
            raise StoppedError(step)


Steps: TypeAlias = tuple[tuple[str, Callable[[World], str]], ...]

STEPS: Final[Steps] = (
    ("no API key", using.check_api_key),
    ("POST /tasks runs at once", using.check_enqueue),
    ("the same Idempotency-Key again", using.check_repeat),
    (f"a batch of {using.BATCH}", using.check_batch),
    ("DELETE cancels", using.check_cancel),
    ("a time of a schedule, delivered twice", using.check_recurring),
    ("a failed attempt is retried", using.check_retry),
    ("a backlog: executors start others, and successors", failing.check_backlog),
    ("kill -9 of an executor: destination, reclaim, second run", failing.check_death),
    ("a dead letter in MongoDB and S3", failing.check_dead_letter),
)
COMMANDS: Final[Steps] = (
    ("tidemill ops queue ls --function", operating.check_queue_command),
    ("tidemill ops stats --function", operating.check_stats_command),
    ("tidemill dlq ls --function", operating.check_letters_command),
)
"""They start no executor: what is enqueued for the tick is left to it."""

LAST_STEPS: Final[Steps] = (
    ("tidemill dlq redrive --function", operating.check_redrive),
    ("the secret names another user", operating.check_rotation),
)


def _build_before(tools: Tools, table: Table) -> Path | None:
    found: list[Path] = []

    def build() -> str:
        release = find_release_before(ROOT)
        if release is None:
            raise SkippedError("this clone is too shallow to have it: git fetch --unshallow")
        found.append(build_release(release, ROOT, architecture=tools.architecture, python_version=tools.python_version))
        return release.short

    table.take("build the release before", build)
    return found[0] if found else None


def _check_ends(folder: Path, mongod: int | None) -> str:
    left = [*find_processes_in(folder), *find_processes_in(folder.with_name(f"{folder.name} (deleted)"))]
    assert left == [], f"processes {left}"
    assert not folder.exists(), folder
    assert mongod is not None
    assert not Path(f"/proc/{mongod}").exists(), "mongod"
    return "no process of emulator, functions and MongoDB, no file"


def _skip_without_release() -> str:
    raise SkippedError("there is no release before")
