"""AWS at one address: Lambda runs the stacks' functions, moto is the rest, and nobody may do what no role allows."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from tests.cloudformation.intrinsics import ACCOUNT, REGION
from tests.end_to_end.deployed.cloud import Cloud
from tests.end_to_end.deployed.permissions import allowed

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

OPERATOR: Final = "operator"
"""The access key of whoever may do everything: the test."""

_SIGNED: Final = re.compile(r"Credential=(?P<key>[^/]+)/\d+/[^/]+/(?P<service>[^/]+)/aws4_request")
_INVOKE: Final = re.compile(r"/2015-03-31/functions/(?P<function>[^/]+)/invocations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What somebody asked of AWS: *caller* is ``STACK.FUNCTION``."""

    caller: str
    action: str
    resource: str
    is_allowed: bool


class Endpoint:
    """Serves AWS's APIs on loopback, until it is closed.

    Attributes:
        clouds: The stacks, by name.
        calls: What was asked, in order.
    """

    def __init__(self) -> None:
        self.clouds: dict[str, Cloud] = {}
        self.calls: list[Call] = []
        self._rest = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        signed = _SIGNED.search(request.headers.get("Authorization", ""))
        if signed is None:
            return _refusal("MissingAuthenticationToken")(environ, start)
        caller, service = signed["key"], signed["service"]
        action, resource = _ACTIONS[service](self, request)
        is_allowed = self._may(caller, action, resource)
        self.calls.append(Call(caller=caller, action=action, resource=resource, is_allowed=is_allowed))
        if not is_allowed:
            return _refusal("AccessDenied" if service == "s3" else "AccessDeniedException")(environ, start)
        if service == "lambda":
            return self._invoked(resource, request)(environ, start)
        # What was read of it for the check is put back.
        environ |= {"wsgi.input": io.BytesIO(request.data), "CONTENT_LENGTH": str(len(request.data))}
        answer: Iterable[bytes] = self._rest(environ, start)
        return answer

    def _may(self, caller: str, action: str, resource: str) -> bool:
        if caller == OPERATOR:
            return True
        stack, _, function = caller.partition(".")
        cloud = self.clouds[stack]
        return allowed(cloud.deployment.statements[cloud.function(function).role], action, resource)

    def _invoked(self, arn: str, request: Request) -> Response:
        cloud = self._cloud_of(arn)
        if cloud is None:
            return _refusal("ResourceNotFoundException", status=404)
        trace = request.headers.get("X-Amzn-Trace-Id")
        match request.headers.get("X-Amz-Invocation-Type", "RequestResponse"):
            case "DryRun":
                return Response(status=204)
            case "Event":
                cloud.send(arn, json.loads(request.data or b"{}"), trace=trace)
                return Response(status=202)
            case _ if trace is not None and cloud.stops(arn, trace):
                return _refusal("RecursiveInvocationException", status=400)
            case _:
                answer = cloud.invoke(arn, request.data or b"{}", trace=trace)
                error = {} if answer.error is None else {"X-Amz-Function-Error": answer.error}
                return Response(answer.content, status=200, headers={"X-Amz-Executed-Version": "$LATEST", **error})

    def _cloud_of(self, arn: str) -> Cloud | None:
        arns = {one.arn: cloud for cloud in self.clouds.values() for one in cloud.deployment.functions.values()}
        return arns.get(arn)

    def _lambda(self, request: Request) -> tuple[str, str]:
        match = _INVOKE.fullmatch(unquote(request.path))
        if match is None:
            return "lambda:Other", request.path
        known = {one.name: one.arn for cloud in self.clouds.values() for one in cloud.deployment.functions.values()}
        return "lambda:InvokeFunction", known.get(match["function"], match["function"])

    def _s3(self, request: Request) -> tuple[str, str]:
        is_plain = request.method in {"PUT", "GET"} and not request.query_string and request.path.count("/") > 1
        action = f"s3:{request.method.title()}{'Object' if is_plain else 'Other'}"
        return action, f"arn:aws:s3:::{unquote(request.path).lstrip('/')}"

    def _secrets(self, request: Request) -> tuple[str, str]:
        action = request.headers["X-Amz-Target"].rpartition(".")[2]
        return f"secretsmanager:{action}", str(json.loads(request.data).get("SecretId"))

    def _sqs(self, request: Request) -> tuple[str, str]:
        asked = json.loads(request.data)
        name = asked.get("QueueName") or str(asked.get("QueueUrl")).rpartition("/")[2]
        return f"sqs:{request.headers['X-Amz-Target'].rpartition('.')[2]}", f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Say nothing."""


def _refusal(code: str, *, status: int = 403) -> Response:
    if code == "AccessDenied":
        text = f"<Error><Code>{code}</Code><Message>S3cr3t</Message></Error>"
        return Response(text, status=status, mimetype="application/xml")
    text = json.dumps({"__type": code, "Message": "S3cr3t"})
    return Response(text, status=status, mimetype="application/json", headers={"x-amzn-ErrorType": code})


_ACTIONS: Final[Mapping[str, Callable[[Endpoint, Request], tuple[str, str]]]] = {
    "lambda": Endpoint._lambda,
    "s3": Endpoint._s3,
    "secretsmanager": Endpoint._secrets,
    "sqs": Endpoint._sqs,
}
