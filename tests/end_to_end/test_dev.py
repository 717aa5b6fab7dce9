"""`tidemill dev` as a newcomer runs it: tasks run, changes count, failures are shown, and nothing is left behind."""

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
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tidemill.testing import Mongod
from tools.pages import find_blocks, read_page

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
FIRST_TASK = "docs/start/first-task.md"
READY_WITHIN_SEC = 60
GONE_WITHIN_SEC = 15
MARK = "TIDEMILL_DEV_OF_THIS_TEST"
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
class Dev:
    """A `tidemill dev` in a process of its own; whatever it starts inherits the mark."""

    process: subprocess.Popen[str]
    mark: str
    project: Path
    lines: list[str] = field(default_factory=list)

    def wait_until_ready(self) -> None:
        self.wait_for(r"Ctrl-C stops it all")

    def wait_for(self, pattern: str) -> str:
        """Read lines until one matches; return it. Lines that were read before do not count."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(READY_WITHIN_SEC, self.process.kill)  # which ends the lines
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.lines.append(line)
                if re.search(pattern, line):
                    return line
        finally:
            watchdog.cancel()
        pytest.fail(f"it ended before {pattern}: {self.text}")

    @property
    def text(self) -> str:
        return "".join(self.lines)

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

    def keep_reading(self) -> None:
        """Read the output on a thread, so that the pipe never fills."""
        assert self.process.stdout is not None
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout or ()), daemon=True).start()

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, "".join(self.lines))
        assert found, self.lines
        return found[1]


@contextmanager
def dev(project: Path, *arguments: str, **environment: str) -> Iterator[Dev]:
    """Run `tidemill dev` in the folder *project*."""
    mark = uuid.uuid4().hex
    given = {name: value for name, value in os.environ.items() if name not in {"MONGODB_URI", "TASK_PACKAGE"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill", "dev", "--port", "0", *arguments],
        cwd=project,
        env=given | {MARK: mark} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    running = Dev(process=process, mark=mark, project=project)
    try:
        yield running
    finally:
        process.kill()
        process.communicate()
        assert eventually(lambda: running.processes() == [], within_sec=GONE_WITHIN_SEC)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one module of tasks."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/__init__.py").touch()
    write_tasks(tmp_path, "return 'first'")
    return tmp_path


def write_tasks(project: Path, body: str, *, name: str = "mine") -> None:
    """Write the task function *name*, and replace the file at once, as editors do."""
    text = f"""
import os, sys, time
from pathlib import Path
from tidemill import task

@task("{name}", http=True, retry="aggressive")
def run(payload):
    {body}
"""
    new = project / f"new-{name}"
    new.write_text(text, encoding="utf-8")
    new.replace(project / f"tasks/{name}.py")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A `tidemill dev` in a project with the task functions of the pages and of this repository."""
    folder = tmp_path_factory.mktemp("dev")
    tasks = shutil.copytree(ROOT / "layers/tasks/tasks", folder / "tasks")
    for name, page in (("greet", FIRST_TASK), ("invoices", "README.md")):
        module = find_blocks(read_page(page), "python")[0]
        (tasks / f"{name}.py").write_text(module, encoding="utf-8")
    write_tasks(folder, "raise KeyError('in a process of its own')", name="isolated")
    isolated = tasks / "isolated.py"
    isolated.write_text(isolated.read_text().replace('retry="aggressive"', 'retry="one_shot", isolate=True'))
    with dev(folder) as running:
        running.wait_until_ready()
        running.keep_reading()
        yield running


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
def test_every_curl_line_of_a_page_works(served: Dev, page: str) -> None:
    shown = curls(
        read_page(page), API_URL=f"{served.url}/v1", API_KEY="reader", ID=_kept(served), TASK_ID=_kept(served)
    )

    assert {curl.method for curl in shown} >= {"POST"}
    for curl in shown:
        answer = served.send(curl.method, curl.path, curl.body, headers=curl.headers)
        assert answer.status in {200, 202}, (curl, answer.text)


def test_the_first_task_fails_once_with_its_traceback_and_succeeds(served: Dev) -> None:
    task_id = served.enqueue(name="greet", payload={"name": "Ada"})

    assert eventually(lambda: served.task(task_id)["status"] == "done")
    assert served.task(task_id)["attempts"] == 2
    assert served.task(task_id)["result"] == {"greeting": "Hello Ada"}
    assert eventually(lambda: f"greet {task_id} attempt 2 done" in served.text)
    shown = served.text.partition(f"greet {task_id} attempt 1 failed in ")[2]
    assert "ConnectionError: the line is busy" in shown.splitlines()[0]
    assert shown.splitlines()[1].strip() == "Traceback (most recent call last):"
    assert 'tasks/greet.py", line 8, in greet' in shown.splitlines()[2]


def test_an_isolated_function_has_its_traceback_too(served: Dev) -> None:
    task_id = served.enqueue(name="isolated")

    assert eventually(lambda: f"isolated {task_id} attempt 1 failed for good (exhausted)" in served.text)
    assert eventually(lambda: 'tasks/isolated.py", line 8, in run' in served.text)


def test_a_second_one_in_the_same_folder_names_the_first(served: Dev) -> None:
    with dev(served.project) as second:
        output, _ = second.process.communicate(timeout=READY_WITHIN_SEC)

    expected = f"another `tidemill dev` (process {served.process.pid}) uses {served.project / '.tidemill'}: stop it"
    assert (second.process.returncode, expected in output) == (1, True), output


def _kept(served: Dev) -> str:
    """A task of the reader's, which stays for a while."""
    body = json.dumps({"name": "noop", "payload": {}, "delay_sec": 3600})
    answer = served.send("POST", "/v1/tasks", body, headers={"x-api-key": "reader"})
    return str(answer.body["id"])


def test_the_curl_line_it_prints_works(served: Dev) -> None:
    before = served.text.partition("Ctrl-C")[0]
    printed = "```\n{}```\n".format("".join(line.strip() + "\n" for line in before.splitlines()))

    [one] = curls(printed, API_URL=f"{served.url}/v1", API_KEY="me")

    assert served.send(one.method, one.path, one.body, headers=one.headers).status == 202


def test_a_task_runs_at_once(served: Dev) -> None:
    task_id = served.enqueue()

    assert eventually(lambda: served.task(task_id)["status"] == "done")


def test_a_delayed_task_waits_and_runs_by_itself(served: Dev) -> None:
    task_id = served.enqueue(delay_sec=1)

    assert served.task(task_id)["status"] == "pending"
    assert eventually(lambda: served.task(task_id)["status"] == "done")


def test_a_task_that_fails_is_retried_and_becomes_a_dead_letter_that_is_told_of(served: Dev) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        retry = {"strategy": "fixed", "base_sec": 0.1, "jitter": "none", "max_retries": 1}
        task_id = served.enqueue(name="deliver_webhook", payload={"url": url, "body": {}}, retry=retry)

        assert eventually(lambda: served.task(task_id)["status"] == "failed")

    assert served.task(task_id)["attempts"] == 2
    with MongoClient[dict[str, Any]](served.mongodb) as client:
        assert eventually(lambda: client["tidemill"]["tasks_dlq"].count_documents({"_id.task": ObjectId(task_id)}) == 1)
    assert served.task(task_id)["status"] == "failed"


def test_a_task_can_be_cancelled_by_its_caller_alone(served: Dev) -> None:
    task_id = served.enqueue(delay_sec=3600)

    assert served.send("DELETE", f"/v1/tasks/{task_id}", headers={"x-api-key": "other"}).status == 404
    assert served.send("DELETE", f"/v1/tasks/{task_id}").body["status"] == "cancelled"


def test_the_page_and_the_document_are_served(served: Dev) -> None:
    page = served.send("GET", "/", headers={})
    document = served.send("GET", "/openapi.json", headers={})

    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "SwaggerUIBundle" in page.text
    assert document.body["servers"] == [{"url": "/v1", "description": "This machine"}]
    assert document.body["paths"].keys() >= {"/tasks", "/tasks/{task_id}"}


def test_repeated_headers_and_encoded_paths_arrive_as_they_were_sent(served: Dev) -> None:
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


def test_others_reach_it_and_its_mongodb_where_they_are_meant_to(project: Path) -> None:
    with dev(project, "--bind", "127.0.0.2") as running:
        running.wait_until_ready()

        with MongoClient[dict[str, Any]](running.mongodb.replace("127.0.0.1", "127.0.0.2")) as client:
            assert client.admin.command("ping")["ok"] == 1
        assert running.url.startswith("http://127.0.0.2:")
        assert running.send("GET", "/").status == 200
        assert "without a password" in running.text
        assert running.end(signal.SIGHUP) == 0


def test_a_changed_file_is_loaded_and_running_tasks_finish_with_the_code_that_they_began_with(project: Path) -> None:
    write_tasks(project, "Path('begun').touch(); [time.sleep(0.02) for _ in range(3000) if not Path('end').exists()]")
    with dev(project) as running:
        running.wait_until_ready()
        old = running.enqueue(name="mine")
        assert eventually((project / "begun").exists)

        write_tasks(project, "return 'second'")
        running.wait_for("tasks/mine.py.* changed; loading")
        running.wait_for("1 task function of tasks loaded: mine")
        new = running.enqueue(name="mine")
        running.wait_for(f"mine {new} attempt 1 done")

        assert running.task(old)["status"] == "processing"
        (project / "end").touch()
        running.wait_for(f"mine {old} attempt 1 done")
        assert (running.task(old)["result"], running.task(old)["attempts"]) == (None, 1)
        assert running.task(new)["result"] == "second"


def test_a_file_that_cannot_be_loaded_is_shown_and_the_code_of_before_keeps_running(project: Path) -> None:
    write_tasks(project, "return 1", name="sound")  # the new code is not run in part
    with dev(project) as running:
        running.wait_until_ready()

        write_tasks(project, "return (")
        running.wait_for(r"not loaded: tasks/mine.py:8: the task module tasks.mine cannot be imported: SyntaxError")
        running.wait_for("SyntaxError: '\\(' was never closed")
        running.wait_for("the code of before keeps running")
        task_id = running.enqueue(name="mine")
        running.wait_for(f"mine {task_id} attempt 1 done")
        assert running.task(task_id)["result"] == "first"

        write_tasks(project, "return 'mended'")
        running.wait_for("loaded: mine")
        task_id = running.enqueue(name="mine")
        running.wait_for(f"mine {task_id} attempt 1 done")
        assert running.task(task_id)["result"] == "mended"
        assert 'tasks/mine.py", line 8' in running.text


def test_a_start_without_code_that_can_be_loaded_waits_for_a_change(project: Path) -> None:
    write_tasks(project, "return 1\n\nraise KeyError('what the secret is')")
    with dev(project) as running:
        running.wait_until_ready()
        assert "no task runs until a changed file can be loaded" in running.text
        assert "KeyError: 'what the secret is'" in running.text

        write_tasks(project, "return 1")
        running.wait_for("loaded: mine")
        running.wait_for(f"mine {running.enqueue(name='mine')} attempt 1 done")


def test_a_start_with_a_fault_in_one_module_runs_the_tasks_of_the_others(project: Path) -> None:
    write_tasks(project, "return 1\n\nimport nowhere", name="broken")
    with dev(project) as running:
        running.wait_for("not loaded: tasks/broken.py:10: the task module tasks.broken cannot be imported")
        running.wait_for("ModuleNotFoundError: No module named 'nowhere'")
        running.wait_for("1 task function of tasks loaded: mine")
        running.wait_until_ready()
        running.wait_for(f"mine {running.enqueue(name='mine')} attempt 1 done")


def test_an_executor_whose_code_has_changed_closes_its_resources(project: Path) -> None:
    source = """
from pathlib import Path
from tidemill import resource, task

@resource
def client():
    yield "client"
    Path("closed").touch()

@task("mine", http=True)
def run(payload):
    return client()
"""
    (project / "tasks/mine.py").write_text(source, encoding="utf-8")
    with dev(project) as running:
        running.wait_until_ready()
        running.wait_for(f"mine {running.enqueue(name='mine')} attempt 1 done")

        write_tasks(project, "return 'second'")

        running.wait_for("1 task function of tasks loaded: mine")
        assert eventually((project / "closed").exists)


def test_a_task_that_kills_its_executor_runs_again_with_another_one(project: Path) -> None:
    write_tasks(project, "Path('was-here').exists() or (Path('was-here').touch(), os._exit(0))")
    with dev(project) as running:
        running.wait_until_ready()
        task_id = running.enqueue(name="mine")

        running.wait_for("1 taken back from a dead executor")
        running.wait_for("the executor ended with status 0; another one starts")
        running.wait_for(f"mine {task_id} attempt 1 done")


def test_tasks_stay_until_they_are_deleted_and_what_was_killed_runs_again_at_the_next_start(project: Path) -> None:
    body = "(Path('begun').exists() or (Path('begun').touch(), time.sleep(600))) and None"
    write_tasks(project, body)
    with dev(project) as running:
        running.wait_until_ready()
        uri = running.mongodb
        task_id = running.enqueue(name="mine")
        assert eventually((project / "begun").exists)

        running.process.kill()

        assert eventually(lambda: running.processes() == [], within_sec=GONE_WITHIN_SEC)
    with dev(project, MONGODB_URI=uri) as running:  # a shell that took over the printed line
        running.wait_until_ready()
        running.wait_for(f"mine {task_id} attempt 1 done")
        assert running.mongodb == uri
        assert running.end(signal.SIGTERM) == 0
    with dev(project, "--fresh") as running:
        running.wait_until_ready()
        assert running.send("GET", f"/v1/tasks/{task_id}").status == 404
        assert (project / ".tidemill/.gitignore").read_text() == "*\n"


def test_a_mongodb_whose_port_was_taken_meanwhile_moves_with_its_tasks(project: Path) -> None:
    with dev(project) as running:
        running.wait_until_ready()
        uri, task_id = running.mongodb, running.enqueue(name="mine", delay_sec=3600)
        assert running.end(signal.SIGTERM) == 0
    (project / "other").mkdir()
    shutil.copy(project / ".tidemill/port", project / "other/port")
    with dev(project, "--data", "other") as other, dev(project) as running:
        other.wait_until_ready()
        running.wait_until_ready()
        assert {other.mongodb != uri, running.mongodb != uri} == {True, False}
        assert running.task(task_id)["status"] == "pending"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_no_process_is_left(number: signal.Signals, project: Path) -> None:
    with dev(project) as running:
        running.wait_until_ready()
        task_id = running.enqueue(delay_sec=3600, name="mine")

        assert running.end(number) == 0

        assert running.processes() == []
        assert task_id not in running.text
        assert "Traceback" not in running.text
        with pytest.raises(ConnectionRefusedError):
            running.send("GET", "/")


def test_a_second_signal_does_not_wait_for_running_tasks_which_run_again(project: Path) -> None:
    write_tasks(project, "Path('begun').exists() or (Path('begun').touch(), time.sleep(600))")
    with dev(project) as running:
        running.wait_until_ready()
        task_id = running.enqueue(name="mine")
        assert eventually((project / "begun").exists)
        running.process.send_signal(signal.SIGINT)
        running.wait_for("Ctrl-C again stops at once")

        assert running.end(signal.SIGINT) == 0
        assert "1 taken back from a dead executor" in running.text
    with dev(project) as running:
        running.wait_for(f"mine {task_id} attempt 1 done")


def test_a_storm_of_signals_ends_it_as_one_signal_does(project: Path) -> None:
    with dev(project) as running:
        running.wait_until_ready()

        for _ in range(20_000):
            os.kill(running.process.pid, signal.SIGTERM)

        assert running.end(signal.SIGTERM) == 0
        assert running.lines[-1] == "Ctrl-C stops it all.\n"
        assert running.processes() == []


def test_a_signal_during_the_start_ends_it_with_a_sentence(project: Path) -> None:
    write_tasks(project, "return 1\n\nPath('begun').touch()\ntime.sleep(600)")
    with dev(project) as running:
        assert eventually((project / "begun").exists)

        assert running.end(signal.SIGINT) == 1
        assert running.lines == ["tidemill: stopped before it was ready\n"]
        assert running.processes() == []


def test_the_mongodb_of_the_environment_is_used_and_left_as_it_was(project: Path, mongod: Mongod) -> None:
    database = f"test_{uuid.uuid4().hex}"
    with dev(project, MONGODB_URI=mongod.uri, MONGODB_DATABASE=database) as running:
        running.wait_until_ready()
        running.wait_for(f"mine {running.enqueue(name='mine')} attempt 1 done")
        assert f"the one that MONGODB_URI names, database {database}" in running.text
        assert mongod.uri not in running.text
        assert running.end(signal.SIGTERM) == 0
    with MongoClient[dict[str, Any]](mongod.uri) as client:
        assert client[database]["tasks"].count_documents({"status": "done"}) == 1
        client.drop_database(database)
    assert not (project / ".tidemill").exists()


OTHER_MACHINE = {"MONGODB_URI": "mongodb://me:secret@db.example.com/"}


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--port", "taken"], {}, r"cannot listen on 127\.0\.0\.1:\d+ \(Address already in use\): .*--port \d+"),
        (["--bind", "192.0.2.1"], {}, r"cannot listen on 192\.0\.2\.1:0 \(.*\): .*--bind 0\.0\.0\.0 means all"),
        (["--tasks", "shop.tasks"], {}, r"there is no package shop\.tasks in /.*: `tidemill init` .* --tasks"),
        ([], {"TASK_PACKAGE": "tsks"}, r"there is no package tsks in /.*: `tidemill init` .* --tasks"),
        ([], {"RETRY_SHARE": "2"}, r"RETRY_SHARE must be a number from 0 to 1"),
        ([], OTHER_MACHINE, r"MONGODB_URI names another machine, .*: pass --embedded .*, or --remote"),
        ([], {"MONGODB_URI": "mongodb+srv://db.example.com/"}, r"MONGODB_URI names another machine, .*"),
        ([], {"MONGODB_URI": "mongodb://127.0.0.1:x/"}, r"MONGODB_URI .*"),
        (
            [],
            {"MONGODB_URI": "mongodb://127.0.0.1:1/"},
            r"MONGODB_URI: .* not reached .*pass --embedded",
        ),
        (["--fresh"], {"MONGODB_URI": "mongodb://127.0.0.1/"}, r"--fresh does not apply .*: add --embedded"),
        (["--data", "/proc/nowhere"], {}, r"cannot write to /proc/nowhere \(.*\): pass another folder with --data"),
    ],
)
def test_what_it_cannot_work_with_is_one_sentence(
    arguments: list[str], environment: dict[str, str], sentence: str, project: Path
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        arguments = [str(other.getsockname()[1]) if word == "taken" else word for word in arguments]
        with dev(project, *arguments, **environment) as running:
            output, _ = running.process.communicate(timeout=READY_WITHIN_SEC)

            assert running.process.returncode == 1
            assert re.fullmatch(f"tidemill: {sentence}.*\n", output), output
            assert "secret" not in output
            assert not (project / ".tidemill").exists()


@pytest.mark.parametrize(
    ("system", "machine", "remedy"),
    [
        ("Darwin", "arm64", "run `brew tap mongodb/brew && brew install mongodb-community`"),
        ("Linux", "aarch64", "install MongoDB Community Server so that `mongod` is on PATH"),
    ],
)
def test_a_machine_without_mongod_is_one_sentence(system: str, machine: str, remedy: str, project: Path) -> None:
    (project / "sitecustomize.py").write_text(
        f"import platform\nplatform.system = lambda: {system!r}\nplatform.machine = lambda: {machine!r}\n"
    )
    path = f"{project}:{os.environ.get('PYTHONPATH', '')}"
    with dev(project, PYTHONPATH=path, PATH=str(project)) as running:
        output, _ = running.process.communicate(timeout=READY_WITHIN_SEC)

    assert output == f"tidemill: there is no mongod to start: {remedy}, or set MONGODB_URI to a MongoDB that runs\n"
    assert running.process.returncode == 1
