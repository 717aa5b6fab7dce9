"""A worker stays a worker, whatever task code does with signals, processes, event loops, streams and folders.

Each case is a package of its own: its module does *at import* what the first text says, and its task what the second
text says. Afterwards the worker runs another task, and one SIGTERM stops it in order.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.features.worker.test_worker import yard_at
from tests.features.worker.workers import Process, Yard
from tests.unit.make import eventually
from tidemill.clock import ServerClock
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

GONE = "os.mkdir(f'/tmp/gone-{os.getpid()}'); os.chdir(f'/tmp/gone-{os.getpid()}'); os.rmdir(os.getcwd())"
MODULE = """\
import asyncio, multiprocessing, os, signal, subprocess, sys, threading, time
from tidemill import task

def sleeping():
    time.sleep(60)

{at_import}
"""

TASK = """
@task("{name}", isolate={isolate}, timeout=20)
def {name}(payload):
{body}
"""

AT_IMPORT = {
    "takes the signals": """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    """,
    "ignores the signals": """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    """,
    "ignores children": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "blocks the signals": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})",
    "runs a loop with handlers of signals": """
        async def main():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, print)
            loop.add_signal_handler(signal.SIGUSR1, print)
            await asyncio.sleep(0)
        asyncio.run(main())
    """,
    "takes the wakeup descriptor": "signal.set_wakeup_fd(-1)",
    "starts a child that stays": "child = multiprocessing.Process(target=sleeping, daemon=True); child.start()",
    "goes to a folder that is gone": GONE,
    "goes to another folder": "os.chdir('/')",
    "replaces the streams": "sys.stdout = sys.stderr = open(os.devnull, 'w')",
    "closes the streams": "sys.stdout.close(); sys.stderr.close()",
    "has no streams": "sys.stdout = sys.stderr = sys.stdin = None",
    "empties the path": "sys.path.clear()",
    "empties the environment": "os.environ.clear()",
    "sets a time limit for sockets": "import socket; socket.setdefaulttimeout(0.001)",
    "makes warnings errors": "import warnings; warnings.simplefilter('error')",
    "disables logging": "import logging; logging.disable(); logging.root.handlers.clear()",
    "lowers a limit of the process": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "leaves a thread that runs on": "threading.Thread(target=sleeping).start()",
    "sets the policy of event loops": "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())",
}  # fmt: skip

AT_RUN = {
    "uses a pool": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, 2])
    """,
    "terminates a child": """
        child = multiprocessing.get_context("fork").Process(target=sleeping)
        child.start()
        child.terminate()
        child.join(10)
        return child.exitcode
    """,
    "interrupts a child": """
        child = multiprocessing.get_context("fork").Process(target=sleeping)
        child.start()
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGINT)
        child.join(10)
        return child.exitcode
    """,
    "forks and leaves by exception": """
        if os.fork() == 0:
            raise SystemExit
        os.wait()
    """,
    "forks and goes on": """
        if os.fork() == 0:
            return "child"
        os.wait()
    """,
    "runs a command": "return subprocess.run(['kill', '-TERM', '0'], start_new_session=True).returncode",
    "waits for any child": """
        subprocess.Popen(["true"])
        return os.waitpid(-1, 0)[1]
    """,
    "closes the streams": "sys.stdout.close(); sys.stderr.close()",
    "has no streams": "sys.stdout = sys.stderr = None",
    "closes the descriptors of the streams": "os.close(1); os.close(2)",
    "goes to a folder that is gone": GONE,
    "tries to set a handler": "signal.signal(signal.SIGTERM, signal.SIG_DFL)",
    "blocks the signals": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})",
    "leaves a loop that is closed": """
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    """,
    "runs a loop of its own": "return asyncio.run(asyncio.sleep(0, 'slept'))",
    "makes a pool of its own and leaves it": """
        import concurrent.futures
        global pool
        pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        return pool.submit(abs, -1).result()
    """,
    "leaves a child that runs on": """
        global child
        child = multiprocessing.get_context("fork").Process(target=sleeping, daemon=True)
        child.start()
    """,
    "leaves a process group": "return os.getpgid(0) and os.setpgrp()",
    "empties the environment": "os.environ.clear()",
    "empties the path": "sys.path.clear()",
    "sets a time limit for sockets": "import socket; socket.setdefaulttimeout(0.001)",
    "lowers the recursion limit": "sys.setrecursionlimit(60)",
    "makes warnings errors": "import warnings; warnings.simplefilter('error')",
    "traces every call": "threading.setprofile(lambda *_: 1 / 0); sys.setprofile(lambda *_: 1 / 0)",
    "replaces print and open": "import builtins; builtins.print = builtins.open = None",
    "leaves a loop that runs on": """
        threading.Thread(target=asyncio.new_event_loop().run_forever, daemon=True).start()
    """,
}  # fmt: skip


RESULTS = {"uses a pool": [1, 2], "terminates a child": -15, "interrupts a child": 1, "runs a command": -15}

WAITING_FOR_CHILD = """
    def wait():
        open(payload["at"], "w").close()  # from here on an interrupt reaches it
        time.sleep(60)
    child = multiprocessing.get_context("fork").Process(target=wait)
    child.start()
    child.join(15)
    return child.exitcode
"""


class Rough:
    """A yard with one package of rough tasks."""

    def __init__(self, yard: Yard, folder: Path) -> None:
        self.yard = yard
        self.folder = folder

    def start(self, bodies: Mapping[str, str], *, at_import: str = "", isolated: Collection[str] = ()) -> Process:
        """Start a worker whose module has a task for each of *bodies*, and does *at_import* before."""
        package = self.folder / "rough_tasks"
        package.mkdir()
        (package / "__init__.py").touch()
        tasks = [
            TASK.format(
                name=name, isolate=name in isolated, body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
            )
            for name, body in bodies.items()
        ]
        (package / "rough.py").write_text(MODULE.format(at_import=textwrap.dedent(at_import)) + "".join(tasks))
        return self.yard.process("--tasks", "rough_tasks", PYTHONPATH=str(self.folder))

    def run(self, name: str) -> dict[str, Any]:
        """Enqueue a task and return its document once it has ended."""
        tasks = open_tasks(self.yard.db)
        [task_id] = add(tasks, [document(ServerClock(self.yard.db).now(), name=name, max_retries=0)])
        ended = {"done", "failed"}
        assert eventually(lambda: self.yard.stored(task_id)["status"] in ended, within=25)
        return self.yard.stored(task_id)


@pytest.fixture
def rough(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Rough]:
    with yard_at(mongod.uri, db, tmp_path) as yard:
        yield Rough(yard, tmp_path)


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_module_that_does_this_at_import_leaves_the_worker_a_worker(rough: Rough, name: str) -> None:
    bodies = {"in_thread": "return 'ran'", "in_child": "return 'ran too'"}
    worker = rough.start(bodies, at_import=AT_IMPORT[name], isolated={"in_child"})

    assert [rough.run(task)["result"] for task in bodies] == ["ran", "ran too"]
    ended = worker.stopped()
    assert ended.status == 0, ended


@pytest.mark.parametrize("name", AT_RUN)
def test_a_task_that_does_this_in_a_thread_leaves_the_worker_a_worker(rough: Rough, name: str) -> None:  # N55, N55c
    worker = rough.start({"rough": AT_RUN[name], "after": "return 'ran'"})

    ran = rough.run("rough")
    assert rough.run("after")["result"] == "ran", ran
    ended = worker.stopped()
    assert ended.status == 0, (ran, ended)
    if name in RESULTS:
        assert ran["result"] == RESULTS[name]


def test_whatever_isolated_tasks_do_they_leave_the_worker_a_worker(rough: Rough) -> None:
    bodies = {f"task_{number}": body for number, body in enumerate(AT_RUN.values())}
    worker = rough.start(bodies | {"after": "return 'ran'"}, isolated={*bodies, "after"})

    for name in bodies:
        rough.run(name)

    assert rough.run("after")["result"] == "ran"
    ended = worker.stopped()
    assert ended.status == 0, ended


def test_one_interrupt_of_the_terminal_is_one_for_the_worker(rough: Rough) -> None:  # N55c
    worker = rough.start({"rough": WAITING_FOR_CHILD, "after": "return 'ran'"})
    tasks = open_tasks(rough.yard.db)
    add(tasks, [document(ServerClock(rough.yard.db).now(), name="rough", payload={"at": str(rough.folder / "at")})])
    assert eventually((rough.folder / "at").exists, within=25)

    worker.send_to_all(signal.SIGINT)  # as the terminal does, to the child of the task, too

    ended = worker.ended()
    assert ended.status == 0, ended
    assert ended.out[-1] == "stopped: 1 claimed, 1 done"
    assert not any("exited at once" in line for line in ended.err)
