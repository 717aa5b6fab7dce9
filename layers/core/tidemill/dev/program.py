"""The program of `tidemill dev`: a MongoDB, an executor, sweeps and the HTTP API, until a signal stops them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from tidemill.cli.operations import open_database
from tidemill.dev.event import STAGE
from tidemill.dev.executor import say
from tidemill.dev.executors import Executors, Functions
from tidemill.dev.gateway import Gateway
from tidemill.dev.mongodb import is_elsewhere, is_of_folder, run_mongod
from tidemill.dev.server import listen, serve
from tidemill.dev.sweeps import Sweeps
from tidemill.dev.watch import watch_files
from tidemill.errors import SettingsError, TidemillError, UnavailableError
from tidemill.settings import from_environment

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - only if asked for
END_POLL_SEC: Final = 0.1
"""Time between two looks for a second signal."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CALL: Final = 'curl "$API_URL/tasks" -H "x-api-key: $API_KEY" -H "Content-Type: application/json" -d '


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command; *package* of ``None`` is that of the settings."""

    host: str = LOOPBACK
    port: int = 8000
    package: str | None = None
    data: Path = Path(".tidemill")
    fresh: bool = False
    embedded: bool = False
    remote: bool = False
    reload: bool = True
    verbose: bool = False

    @property
    def is_private(self) -> bool:
        """True if only this machine can connect."""
        return self.host == LOOPBACK

    @property
    def mongod_binds(self) -> str:
        """Addresses of the MongoDB; this program needs loopback."""
        return self.host if self.host in {LOOPBACK, EVERYWHERE} else f"{LOOPBACK},{self.host}"

    @property
    def address(self) -> str:
        """Address of the API for programs on this machine."""
        return LOOPBACK if self.host == EVERYWHERE else self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The MongoDB in use; *is_own* if this program runs it. The representation leaves out the URI."""

    uri: str = field(repr=False)
    is_own: bool


def run(options: Options) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; leave no process behind.

    Raises:
        TidemillError: It cannot start; the message says why, and what to do.
    """
    settings = from_environment(os.environ)
    package = options.package or settings.task_package
    _require_package(package)
    with StopSignals() as signals, listen(host=options.host, port=options.port) as listener, ExitStack() as stack:
        server = stack.enter_context(_open_mongodb(options, settings.mongodb_uri))
        os.environ.update(_environment(options, uri=server.uri, package=package))
        # After the environment: both read it when they are imported or called.
        from tidemill.bootstrap import deployment  # noqa: PLC0415
        from tidemill.dev import openapi  # noqa: PLC0415
        from tidemill.handlers import enqueue  # noqa: PLC0415

        if not server.is_own:
            _require_answer()
        sweeps = Sweeps(deployment(), say=say)
        sweeps.prepare()
        if server.is_own:
            sweeps.take_back_all()  # the executors of the last start have ended, however it ended
        stack.enter_context(sweeps.run())
        executors = Executors(package, say=say, take_back=sweeps.take_back)
        if options.reload:  # before the first load, so that no change is missed
            stack.enter_context(_reload_on_change(executors))
        stack.callback(_end, executors, signals)
        executors.reload()
        executors.wait_until_loaded()
        example = _make_example(executors.functions)
        document = openapi.document(enqueue.app, task=example)
        document["servers"] = [{"url": f"/{STAGE}", "description": "This machine"}]
        stack.enter_context(serve(listener, Gateway(enqueue.lambda_handler, document, say=say)))
        port = listener.getsockname()[1]
        signals.end_start()
        print_lines(_introduce(options, server, port=port, database=settings.database, example=example))
        signals.wait()


def print_lines(lines: list[str]) -> None:
    """Print *lines* on stdout; ignore a closed stdout."""
    if sys.stdout is not None:
        try:
            print("\n".join(lines), flush=True)  # noqa: T201 - the output of the command
        except (OSError, ValueError):
            return


class StopSignals:
    """Context in which signals ask for the end. During the start the first one raises ``KeyboardInterrupt``.

    `SimpleQueue` takes no lock that the interrupted thread may hold.
    """

    def __init__(self) -> None:
        self._received = SimpleQueue[int]()
        self._is_starting = True

    def __enter__(self) -> StopSignals:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as for any job in the background
                signal.signal(number, self._receive)
        return self

    def __exit__(self, *_error: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a further Ctrl-C does not change the status

    def end_start(self) -> None:
        """Let `wait` and `poll` report the signals from now on."""
        self._is_starting = False

    def wait(self) -> None:
        """Return at a signal."""
        self._received.get()

    def poll(self) -> bool:
        """Return true if a further signal has come."""
        try:
            self._received.get_nowait()
        except Empty:
            return False
        return True

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._is_starting:
            self._is_starting = False
            raise KeyboardInterrupt
        self._received.put(number)


def _require_package(package: str) -> None:
    """Refuse a package that is in none of the folders where Python looks. Nothing of it is imported."""
    path: list[str] | None = [str(Path.cwd()), *sys.path]
    for index, _ in enumerate(parts := package.split(".")):
        found = None if path is None else PathFinder.find_spec(".".join(parts[: index + 1]), path)
        if found is None:
            raise TidemillError(
                f"there is no package {package} in {Path.cwd()}: `tidemill init` writes a project with one, "
                "or name yours with --tasks"
            )
        path = None if found.submodule_search_locations is None else list(found.submodule_search_locations)


@contextmanager
def _open_mongodb(options: Options, given_uri: str | None) -> Iterator[Server]:
    """Yield the MongoDB to use: that of MONGODB_URI, or a mongod of its own."""
    # The shell may have the printed URI of the last start, of which no server is left.
    if given_uri is None or options.embedded or is_of_folder(given_uri, options.data):
        with run_mongod(options.data.absolute(), bind=options.mongod_binds, fresh=options.fresh) as uri:
            yield Server(uri=uri, is_own=True)
        return
    if options.fresh:
        raise SettingsError(
            "--fresh does not apply to the MongoDB of MONGODB_URI: add --embedded, or unset MONGODB_URI"
        )
    if is_elsewhere(given_uri) and not options.remote:
        raise SettingsError(
            "MONGODB_URI names another machine, and its tasks would run here with your code: "
            "pass --embedded for a MongoDB of its own, or --remote if you mean that machine"
        )
    yield Server(uri=given_uri, is_own=False)


def _require_answer() -> None:
    """Refuse a given MongoDB that does not answer, or that is not Tidemill's."""
    try:
        open_database()
    except UnavailableError as error:
        raise UnavailableError(f"MONGODB_URI: {error}; start it, or pass --embedded for a MongoDB of its own") from None


def _environment(options: Options, *, uri: str, package: str) -> Mapping[str, str]:
    """Return the variables that differ from the user's: nothing here uses AWS."""
    defaults = {
        # Local receivers are for experiments; callers from other machines must not reach them.
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128" if options.is_private else "",
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | {
        "MONGODB_URI": uri,
        "MONGODB_SECRET_ARN": "",
        "TASK_PACKAGE": package,
        "EXECUTE_FUNCTION": "",
        "FAILURES_QUEUE_URL": "",
        "ARCHIVE_BUCKET": "",
        "AWS_LAMBDA_FUNCTION_VERSION": "",
        "POWERTOOLS_DEV": "0",
        "POWERTOOLS_LOG_LEVEL": "INFO" if options.verbose else "CRITICAL",
        "POWERTOOLS_METRICS_DISABLED": "true",
    }


@contextmanager
def _reload_on_change(executors: Executors) -> Iterator[None]:
    def reload(names: list[str]) -> None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        say(f"{names[0]}{more} changed; loading")
        executors.reload()

    def warn(reason: str) -> None:
        say(f"changes are not noticed from now on ({reason}); start `tidemill dev` again after a change")

    with watch_files(Path.cwd(), on_change=reload, on_error=warn):
        yield


def _end(executors: Executors, signals: StopSignals) -> None:
    """Let running tasks finish; a further signal ends them at once."""
    executors.begin_stop()
    if not executors.wait_for_end(END_POLL_SEC * 5):
        say("stopping after the running tasks; Ctrl-C again stops at once, and they run again at the next start")
    while not executors.wait_for_end(END_POLL_SEC):
        if signals.poll():
            executors.kill()


def _make_example(functions: Functions | None) -> Mapping[str, object]:
    """Return a task for the examples, with the name of a function that is open to HTTP."""
    examples = [
        {"name": name, "payload": payload} for name, payload in (functions or {}).items() if payload is not None
    ]
    return examples[0] if examples else {"name": "hello", "payload": {}}


def _introduce(
    options: Options, server: Server, *, port: int, database: str, example: Mapping[str, object]
) -> list[str]:
    here = f"http://{options.address}:{port}"
    lines = [
        f"HTTP API, with a page to try it: {here}/    (every request needs an x-api-key; any value does)",
        f"  export API_URL={here}/{STAGE} API_KEY=me",
        f"  {_CALL}'{json.dumps(example)}'",
    ]
    if server.is_own:
        uri = f"{server.uri.partition('?')[0]}?directConnection=true"
        lines.append("MongoDB, for your application and for `tidemill ops`:")
        lines.append(f"  export MONGODB_URI='{uri}' MONGODB_DATABASE={database}")
    else:
        lines.append(f"MongoDB: the one that MONGODB_URI names, database {database}")
    if not options.is_private:
        lines.append(f"Every machine that reaches {options.host} can use both, without a password.")
        lines.append("  In a container write 172.17.0.1 or host.docker.internal for 127.0.0.1.")
    lines.append("Ctrl-C stops it all.")
    return lines
