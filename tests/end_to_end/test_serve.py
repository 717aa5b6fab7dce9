"""`make serve` as a newcomer runs it: the requests of the pages work, tasks run, and nothing is left behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

from tools.pages import find_blocks, read_page

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
FIRST_TASK = "docs/start/first-task.md"
READY_WITHIN_SEC = 60
GONE_WITHIN_SEC = 15
MARK = "TIDEMILL_SERVE_OF_THIS_TEST"
SENDS_AS = {"-d": "application/x-www-form-urlencoded", "--json": "application/json"}
"""What curl calls a body where nobody tells it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, kw_only=True)
class Serve:
    """A `make serve` in a process of its own; whatever it starts inherits the mark."""

    process: subprocess.Popen[str]
    mark: str
    lines: list[str] = field(default_factory=list)

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if "Ctrl-C" in line:
                return
        pytest.fail(f"it ended before: {self.lines}")

    @property
    def url(self) -> str:
        return self._found(r"(http://[0-9.]+:\d+)/")

    @property
    def mongodb(self) -> str:
        return self._found(r"MONGODB_URI='(.+?)'")

    def send(
        self, method: str, path: str, body: str | None = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request(method, path, body, dict({"x-api-key": "me"} if headers is None else headers))
            got = connection.getresponse()
            return Answer(status=got.status, headers=dict(got.getheaders()), text=got.read().decode())
        finally:
            connection.close()

    def enqueue(self, **task: Any) -> str:
        answer = self.send("POST", "/v1/tasks", json.dumps({"name": "noop", "payload": {}} | task))
        assert answer.status == 202, answer.text
        return str(answer.body["id"])

    def task(self, task_id: str) -> Any:
        return self.send("GET", f"/v1/tasks/{task_id}").body

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=GONE_WITHIN_SEC)
        self.lines.extend(output.splitlines(keepends=True))
        return self.process.returncode

    def processes(self) -> list[int]:
        assert PROC.exists(), "processes are looked for in /proc: run this on Linux, a container will do"
        mark = f"{MARK}={self.mark}".encode()
        return [int(folder.name) for folder in PROC.glob("[0-9]*") if mark in _bytes(folder / "environ")]

    def folders_of_mongod(self) -> list[Path]:
        lines = [_bytes(PROC / str(pid) / "cmdline").split(b"\0") for pid in self.processes()]
        return [Path(os.fsdecode(line[line.index(b"--dbpath") + 1])) for line in lines if b"--dbpath" in line]

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, "".join(self.lines))
        assert found, self.lines
        return found[1]


def serve(temp: Path, *arguments: str, **environment: str) -> AbstractContextManager[Serve]:
    return serve_checkout(ROOT, temp, arguments, environment)


@contextmanager
def serve_checkout(
    checkout: Path, temp: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Serve]:
    mark = uuid.uuid4().hex
    own = {MARK: mark, "TMPDIR": str(temp), "MONGODB_URI": "mongodb://not.to.be.read.invalid/", "PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "localapi", *arguments],
        cwd=checkout,
        env=os.environ | own | dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Serve(process=process, mark=mark)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("serve")
    with serve_checkout(_make_checkout(folder / "checkout"), folder, ["--tick", "1"], {}) as running:
        running.wait_until_ready()
        yield running


def _make_checkout(folder: Path) -> Path:
    """Make a checkout to which a reader has added the task functions of the pages."""
    (folder / "layers/tasks").mkdir(parents=True)
    for name in ("demo", "localapi", "tools", "functions", "events", "tests", "layers/core"):
        (folder / name).symlink_to(ROOT / name)
    tasks = shutil.copytree(ROOT / "layers/tasks/tasks", folder / "layers/tasks/tasks")
    for name, page in (("greet", FIRST_TASK), ("invoices", "README.md")):
        module = find_blocks(read_page(page), "python")[0]
        (tasks / f"{name}.py").write_text(module, encoding="utf-8")
    return folder


def eventually(condition: Callable[[], bool], *, within_sec: float = 30) -> bool:
    give_up_at = time.monotonic() + within_sec
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.05)
    return True


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it is gone by now, or another user's
        return b""


@dataclass(frozen=True, kw_only=True)
class Curl:
    """A command of a page, taken apart."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str | None


def curls(text: str, **known: str) -> list[Curl]:
    """The curl lines in *text*, the rest of each quoted argument included; *known* are the variables it uses."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shell = [block for language, block in blocks if language in {"", "sh", "bash", "console"}]
    lines = [line for block in shell for line in _commands(block) if line.startswith("curl ")]
    return [_curl(line, known) for line in lines]


def _commands(block: str) -> Iterator[str]:
    """Put together again what goes on over several lines, within quotes or behind a backslash."""
    command = ""
    for line in block.splitlines():
        command += line.removeprefix("$ ") if not command else f"\n{line}"
        try:
            shlex.split(command, comments=True)
        except ValueError:
            continue
        if not command.endswith("\\"):
            yield command
            command = ""


def _curl(line: str, known: Mapping[str, str]) -> Curl:
    for name, value in known.items():
        line = re.sub(rf"\${name}\b|\${{{name}}}", value, line)
    method, url, headers, body = None, "", {}, None
    words = iter(shlex.split(line.replace("\\\n", " "), comments=True)[1:])
    for word in words:
        if word in {"-X", "--request"}:
            method = next(words)
        elif word in {"-H", "--header"}:
            name, _, value = next(words).partition(":")
            headers[name.strip()] = value.strip()
        elif word in SENDS_AS:
            body = next(words)
            headers = {"Content-Type": SENDS_AS[word]} | headers
        elif not word.startswith("-"):
            url = word
    return Curl(
        method=method or ("GET" if body is None else "POST"), path=urlsplit(url).path, headers=headers, body=body
    )


@pytest.mark.parametrize("page", [FIRST_TASK, "README.md", "docs/guides/enqueue.md", "docs/guides/webhooks.md"])
def test_every_curl_line_of_a_page_works(served: Serve, page: str) -> None:
    shown = curls(
        read_page(page), API_URL=f"{served.url}/v1", API_KEY="reader", ID=_kept(served), TASK_ID=_kept(served)
    )

    assert {curl.method for curl in shown} >= {"POST"}
    for curl in shown:
        answer = served.send(curl.method, curl.path, curl.body, headers=curl.headers)
        assert answer.status in {200, 202}, (curl, answer.text)


def test_the_first_task_fails_once_and_succeeds(served: Serve) -> None:
    task_id = served.enqueue(name="greet", payload={"name": "Ada"})

    assert eventually(lambda: served.task(task_id)["status"] == "done")
    assert served.task(task_id)["attempts"] == 2
    assert served.task(task_id)["result"] == {"greeting": "Hello Ada"}


def _kept(served: Serve) -> str:
    """A task of the reader's, which stays for a while."""
    body = json.dumps({"name": "noop", "payload": {}, "delay_sec": 3600})
    answer = served.send("POST", "/v1/tasks", body, headers={"x-api-key": "reader"})
    return str(answer.body["id"])


def test_the_curl_line_it_prints_works(served: Serve) -> None:
    printed = "```\n{}```\n".format("".join(line.strip() + "\n" for line in served.lines))

    [one] = curls(printed, API_URL=f"{served.url}/v1", API_KEY="me")

    assert served.send(one.method, one.path, one.body, headers=one.headers).status == 202


def test_a_task_runs_at_once(served: Serve) -> None:
    task_id = served.enqueue()

    assert eventually(lambda: served.task(task_id)["status"] == "done")


def test_a_delayed_task_waits_and_runs_by_itself(served: Serve) -> None:
    task_id = served.enqueue(delay_sec=1)

    assert served.task(task_id)["status"] == "pending"
    assert eventually(lambda: served.task(task_id)["status"] == "done")


def test_a_task_that_fails_is_retried_and_becomes_a_dead_letter_that_is_told_of(served: Serve) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        retry = {"strategy": "fixed", "base_sec": 0.1, "jitter": "none", "max_retries": 1}
        task_id = served.enqueue(name="deliver_webhook", payload={"url": url, "body": {}}, retry=retry)

        assert eventually(lambda: served.task(task_id)["status"] == "failed")

    assert served.task(task_id)["attempts"] == 2
    with MongoClient[dict[str, Any]](served.mongodb) as client:
        assert eventually(lambda: client["tidemill"]["tasks_dlq"].count_documents({}) == 1)
    assert served.task(task_id)["status"] == "failed"


def test_a_task_can_be_cancelled_by_its_caller_alone(served: Serve) -> None:
    task_id = served.enqueue(delay_sec=3600)

    assert served.send("DELETE", f"/v1/tasks/{task_id}", headers={"x-api-key": "other"}).status == 404
    assert served.send("DELETE", f"/v1/tasks/{task_id}").body["status"] == "cancelled"


def test_the_page_and_the_document_are_served(served: Serve) -> None:
    page = served.send("GET", "/", headers={})
    document = served.send("GET", "/openapi.json", headers={})

    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "SwaggerUIBundle" in page.text
    assert document.body["servers"] == [{"url": "/v1", "description": "This machine"}]
    assert document.body["paths"].keys() >= {"/tasks", "/tasks/{task_id}"}


def test_repeated_headers_and_encoded_paths_arrive_as_they_were_sent(served: Serve) -> None:
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=30)
    connection.putrequest("POST", "/v1/tasks")
    for name, value in [
        ("x-api-key", "me"),
        ("Idempotency-Key", "a"),
        ("Idempotency-Key", "b"),
        ("Content-Length", "2"),
    ]:
        connection.putheader(name, value)
    connection.endheaders(b"{}")
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()

    assert (answer.status, body["error"]["code"]) == (400, "invalid_key")
    assert served.send("GET", "/v1/tasks/a%2Fb").body["error"]["message"] == "there is no such task"


def test_others_reach_it_and_its_mongodb_where_they_are_meant_to(tmp_path: Path) -> None:
    with serve(tmp_path, BIND="127.0.0.2") as running:
        running.wait_until_ready()

        with MongoClient[dict[str, Any]](running.mongodb.replace("127.0.0.1", "127.0.0.2")) as client:
            assert client.admin.command("ping")["ok"] == 1
        assert running.url.startswith("http://127.0.0.2:")
        assert running.send("GET", "/").status == 200
        assert "without a password" in "".join(running.lines)
        assert running.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    with serve(tmp_path) as running:
        running.wait_until_ready()
        task_id = running.enqueue(delay_sec=3600)
        folders = running.folders_of_mongod()

        assert running.end(number) == 0

        assert running.processes() == []
        assert [folder for folder in folders if folder.exists()] == []
        assert bool(folders) != ("TIDEMILL_TEST_MONGODB_URI" in os.environ)
        assert task_id not in "".join(running.lines)
        *_, last = [number for number, line in enumerate(running.lines) if "Ctrl-C" in line]
        assert re.fullmatch(r"\d\d:\d\d:\d\d  POST /v1/tasks  202  \d+ ms\n", "".join(running.lines[last + 1 :]))
        with pytest.raises(ConnectionRefusedError):
            running.send("GET", "/")


def test_a_storm_of_signals_ends_it_as_one_signal_does(tmp_path: Path) -> None:
    with serve(tmp_path) as running:
        running.wait_until_ready()

        for _ in range(50_000):
            os.kill(running.process.pid, signal.SIGTERM)

        assert running.end(signal.SIGTERM) == 0
        assert running.lines[-1].endswith("Ctrl-C ends it all.\n")
        assert running.processes() == []


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"PORT": "taken"}, r"tidemill: cannot listen on 127\.0\.0\.1:\d+ \(Address already in use\): .*PORT=8001"),
        ({"BIND": "192.0.2.1"}, r"tidemill: cannot listen on 192\.0\.2\.1:0 \(.*\): .*BIND=0\.0\.0\.0 is all"),
        ({"PORT": "http"}, r"error: PORT must be the number of a port"),
        ({"TIDEMILL_TEST_MONGODB_URI": "mongodb://db.example.com/"}, r"tidemill: TIDEMILL_TEST_MONGODB_URI is refused"),
    ],
)
def test_what_it_cannot_work_with_is_one_sentence(environment: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        if environment.get("PORT") == "taken":
            environment = {"PORT": str(other.getsockname()[1])}
        with serve(tmp_path, **environment) as running:
            output, _ = running.process.communicate(timeout=READY_WITHIN_SEC)

            assert running.process.returncode > 0
            assert re.search(sentence, output), output
            assert "Traceback" not in output
            assert output.count("\n") <= 2  # the usage before an error of the command line
            assert running.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_is_imported_ends_it_without_a_word(number: signal.Signals, tmp_path: Path) -> None:
    heard = tmp_path / "sitecustomize.py"
    heard.write_text(SIGNAL_DURING_IMPORTS.format(number=int(number)))

    with serve(tmp_path, PYTHONPATH=str(tmp_path)) as running:
        output, _ = running.process.communicate(timeout=READY_WITHIN_SEC)

    assert (running.process.returncode, output) == (0, "")


SIGNAL_DURING_IMPORTS = """
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pymongo":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder())
"""
