"""Everything that a deployment does, well and badly, with secrets wherever one can be; then all of it is searched."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

from bson import json_util
from pymongo import MongoClient
from pymongo.database import Database

from tests.handlers.calls import Answer, answer, request
from tests.unit.webhook_receiver import Answer as Received404
from tests.unit.webhook_receiver import Received, receiver
from tidemill import indexes
from tools.chaos.security import aws
from tools.chaos.security.canaries import Canary, Place
from tools.chaos.security.containers import Container, container

DATABASE: Final = "told"
USER: Final = "tidemill"
FUNCTIONS: Final = ("execute", "reclaim", "archive")
EVENT_OF: Final[Mapping[str, Any]] = {"operate": {"op": "queue.list"}}


@dataclass(kw_only=True)
class Heard:
    """What was said, by place; and how many tasks were accepted."""

    texts: dict[Place, str] = field(default_factory=dict)
    accepted: list[str] = field(default_factory=list)
    calls: int = 0

    def add(self, place: Place, *texts: object) -> None:
        """Keep what was said there."""
        said = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, default=str) for one in texts]
        self.texts[place] = "\n".join([self.texts.get(place, ""), *said])


def run(client: MongoClient[Any], made: Mapping[str, Canary], folder: Path, *, is_long: bool) -> Heard:
    """Do it all, and return what was heard; *is_long*: with what waits for a server that is away."""
    heard = Heard()
    uri = _user(client, made["password"])
    message, secret = made["aws_message"].text, json.dumps({"uri": uri})
    with (
        receiver(lambda _: Received404(404, body=b"no")) as hooks,
        aws.serving(secret=secret, message=message) as cloud,
        container(folder / "good", _environment(made, cloud)) as good,
    ):
        _work(good, client[DATABASE], made, hooks_port=hooks.port, heard=heard)
        _fail(good, client, made, heard=heard, is_long=is_long)
        heard.add("log", good.log)
        heard.add("operator", good.terminal)
        heard.add("called", *cloud.called, *map(_received, hooks.received))
        heard.add("object", *cloud.objects)
    heard.add("database", *_stored(client[DATABASE]))
    return heard


def _user(client: MongoClient[Any], password: Canary) -> str:
    """Make a user, and return the URI with its password."""
    client.admin.command("createUser", USER, pwd=password.text, roles=["root"])
    return _uri(client, password.text)


def _uri(client: MongoClient[Any], password: str) -> str:
    host, port = client.address or ("127.0.0.1", 0)
    return f"mongodb://{USER}:{quote_plus(password)}@{host}:{port}/?authSource=admin&directConnection=true"


def _environment(made: Mapping[str, Canary], cloud: aws.Aws) -> dict[str, str]:
    return {
        "MONGODB_SECRET_ARN": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:uri-AbCdEf",
        "MONGODB_DATABASE": DATABASE,
        "ARCHIVE_BUCKET": "letters",
        "EXECUTE_FUNCTION": "execute",
        "AWS_LAMBDA_FUNCTION_NAME": "enqueue",
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": made["aws_secret_key"].core,
        "WEBHOOK_SECRET": made["signing_secret"].text,
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
        "AT_IMPORT": made["text_at_import"].core,
    }


def _work(good: Container, db: Database[Any], made: Mapping[str, Canary], *, hooks_port: int, heard: Heard) -> None:
    """Enqueue, run, retry, crash, archive and operate, as on a good day."""
    indexes.create(db)
    _called(good, heard, "execute")  # declares what HTTP may name
    said = {name: one.text for name, one in made.items()}
    headers = {
        "Idempotency-Key": said["idempotency_key"],
        "x-api-key": said["api_key"],
        "Authorization": f"Bearer {said['authorization']}",
    }
    for number, body in enumerate(_bodies(said, hooks_port)):
        own = headers | {"Idempotency-Key": f"{headers['Idempotency-Key']}{number}"}
        event = request(body=json.dumps(body), headers=own)
        event["requestContext"]["identity"]["apiKey"] = said["api_key"]
        found = _answered(good, heard, event)
        if found.status in {200, 202}:
            heard.accepted.append(found.id)
    for bad in _refused(said):
        _answered(good, heard, request(body=bad, headers=headers))
    direct = {"name": "tell.result", "payload": {"say": said["result"]}, "idempotency_key": said["idempotency_key"]}
    _called(good, heard, "enqueue", direct, direct | {"queue": said["refused_payload"]}, direct | {"priority": 1})
    db.tasks.insert_one({"_id": "by hand", "name": 7, "status": "pending", "payload": said["refused_payload"]})
    # The secrets of an archive that fails are told by the second of two runs, the first of which is refused.
    for function in (*FUNCTIONS, "execute", "reclaim", "archive", "archive"):
        _called(good, heard, function)
    for task_id in heard.accepted:
        _answered(good, heard, request("GET", f"/tasks/{task_id}", headers={"x-api-key": said["api_key"]}))
        _answered(good, heard, request("DELETE", f"/tasks/{task_id}"))
        _operated(good, heard, task_id)
    _look_around(good, heard)


def _bodies(said: Mapping[str, str], hooks_port: int) -> Iterator[dict[str, Any]]:
    """Yield tasks that are accepted, whatever becomes of them."""
    kept = {said["payload_name"]: said["payload_value"]}
    yield {"name": "tell.result", "payload": {"say": said["result"], **kept}}
    for name in ("tell.failure", "tell.retry", "tell.error", "tell.exit"):
        yield {"name": name, "payload": {"say": said["exception_text"], **kept}}
    for name in ("tell.odd", "tell.death"):
        yield {"name": name, "payload": kept}
    yield {"name": "tell.little", "payload": {said["misfit_name"]: said["refused_payload"]}}
    yield {"name": "tell.little", "payload": {"number": said["refused_payload"]}}
    away = f"http://127.0.0.1:{hooks_port}/{quote(said['url_query'], safe='')}?q={quote(said['url_query'], safe='')}"
    hook = {"url": away, "headers": {"X-Token": quote(said["webhook_header"])}, "body": {"b": said["webhook_body"]}}
    yield {"name": "deliver_webhook", "payload": hook}
    user = quote(said["url_user"], safe="")
    for url in (
        f"https://{user}:{user}@hooks.example/",
        f"http://169.254.169.254/{user}",
        f"http://127.0.0.1:1/{user}",
    ):
        yield {"name": "deliver_webhook", "payload": {**hook, "url": url}, "retry": "one_shot"}


def _refused(said: Mapping[str, str]) -> Iterator[str]:
    secret = said["refused_payload"]
    payload = {"say": secret}
    yield json.dumps({"name": "tell.result", "payload": payload, said["field"]: secret})
    yield json.dumps({"name": "tell.result", "payload": payload, "priority": secret})
    yield json.dumps({"name": "tell.result", "payload": {"deep": [[[]]] * 3, "say": secret * 40_000}})
    yield json.dumps({"name": "unknown", "payload": payload, "queue": "undeclared"})
    yield json.dumps({"name": secret, "payload": payload, "not_before": secret, "retry": secret})
    yield json.dumps({"payload": payload})[:-1]
    yield json.dumps(secret)


def _operated(good: Container, heard: Heard, task_id: str) -> None:
    for op in ("task.show", "task.explain", "task.retry", "dlq.show"):
        heard.add("operator", good.call("operate", {"op": op, "id": task_id}))
        heard.calls += 1


def _look_around(good: Container, heard: Heard) -> None:
    """Ask for all that operators can ask for, by the function and by commands."""
    for event in (
        *({"op": op} for op in ("queue.list", "task.list", "stats", "dlq.groups", "dlq.list", "dlq.export")),
        *({"op": "queue.status", "queue": "default"}, {"op": "task.show", "id": "{"}, {"op": "no"}, {}),
        {"op": "dlq.redrive", "all": True, "dry_run": True},
    ):
        heard.add("operator", good.call("operate", event))
        heard.calls += 1
    one = heard.accepted[1]
    for arguments in (
        *(("ops", "queue", "ls"), ("ops", "queue", "status", "default"), ("ops", "task", "ls"), ("ops", "stats")),
        *(("ops", "task", "show", heard.accepted[0]), ("ops", "task", "show", "--json", heard.accepted[0])),
        *(("ops", "task", "explain", one), ("dlq", "show", one), ("dlq", "show", "--json", one), ("dlq", "ls")),
        *(("dlq", "ls", "--items", "--json"), ("dlq", "export"), ("work", "--until-empty"), ("indexes",)),
    ):
        good.command(*arguments)
        heard.calls += 1


def _fail(
    good: Container, client: MongoClient[Any], made: Mapping[str, Canary], *, heard: Heard, is_long: bool
) -> None:
    """Do the same where nothing can be done: a wrong password, no such server, a URI that is none, a broken import."""
    away = f"mongodb://{USER}:{quote_plus(made['password_of_nobody'].text)}@127.0.0.1:{_closed_port()}/"
    bad: Sequence[tuple[str, Sequence[str]]] = [
        (_uri(client, made["wrong_password"].text), ("enqueue", *FUNCTIONS, "operate")),
        (f"mongodb://{USER}:{made['malformed_password'].text}@h/?tls=maybe", ("enqueue", *FUNCTIONS, "operate")),
        (away, ("enqueue", "operate") if is_long else ()),
    ]
    for uri, functions in bad:
        good.start_cold({"MONGODB_URI": uri})
        for function in functions:
            _called(good, heard, function)
        if functions:
            good.command("ops", "queue", "ls")
    good.start_cold({"MONGODB_URI": _uri(client, made["password"].text), "TASK_PACKAGE": f"{__package__}.unimportable"})
    _called(good, heard, "execute")
    good.command("work", "--until-empty")


def _called(good: Container, heard: Heard, function: str, *events: object) -> None:
    event = request(body='{"name": "noop", "payload": {}}') if function == "enqueue" else EVENT_OF.get(function)
    for one in events or [event]:
        heard.add("operator" if function == "operate" else "log", good.call(function, one))
        heard.calls += 1


def _answered(good: Container, heard: Heard, event: Mapping[str, Any]) -> Answer:
    found = answer(good.call("enqueue", event)["returned"])
    heard.add("answer", found.text, dict(found.headers))
    heard.calls += 1
    return found


def _received(delivery: Received) -> str:
    """Return what of a delivery nobody asked for: not its path, its body and its given header."""
    return json.dumps({name: value for name, value in delivery.headers.items() if name != "x-token"})


def _stored(db: Database[Any]) -> Iterator[str]:
    for name in db.list_collection_names():
        for raw in db[name].find():
            yield json_util.dumps(raw, ensure_ascii=False)


def _closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
