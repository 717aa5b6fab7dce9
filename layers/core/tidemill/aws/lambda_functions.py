"""Lambda: facts of this invocation, calls of other functions, and messages to SQS.

boto3 is imported by the first call: the import takes 0.3 s, which most invocations do not need.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from tidemill.errors import InvalidRequestError, Problem, TidemillError
from tidemill.executor.scaling import LaunchError
from tidemill.requests.events import Source
from tidemill.text import describe_missing_extra

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from mypy_boto3_lambda import LambdaClient

OPERATE_TIMEOUT_SEC: Final = 20.0
"""Limit of the wait for an answer of the operate function."""

_ARN_PARTS: Final = 7
"""``arn:aws:lambda:region:account:function:name``, before a qualifier."""

FIRST_TRY_SEC: Final = 30.0
"""Age of a trace above which a repeat is possible: Lambda repeats an asynchronous invocation after a minute."""

LOCAL_LIFETIME: Final = timedelta(seconds=120)
"""Assumed lifetime of a call without a Lambda context."""

MAX_REMAINING: Final = timedelta(days=1)
"""Above the lifetime of any invocation: more is no remaining time but, for example, a date."""

_TRACE_START: Final = re.compile(r"\bRoot=1-(?P<second>[0-9a-f]{8})-")


def is_in_lambda() -> bool:
    """Return true if functions can be invoked: this process is a function, and not one that SAM runs locally."""
    return "AWS_LAMBDA_FUNCTION_NAME" in os.environ and "AWS_SAM_LOCAL" not in os.environ


def get_owner(context: LambdaContext | None) -> str:
    """Return the owner of leases: the request id, by which the platform reports a failed invocation.

    Raises:
        InvalidRequestError: *context* has no request id.
    """
    if context is None:
        return f"local-{os.getpid()}"
    request_id: object = None
    with suppress(Exception):  # a context made by hand may raise anything
        request_id = context.aws_request_id
    if isinstance(request_id, str) and request_id:
        return request_id
    raise _refuse_context("it has no aws_request_id")


def get_remaining(context: LambdaContext | None) -> timedelta:
    """Return the time left of this invocation.

    Raises:
        InvalidRequestError: *context* does not tell it, or tells more than `MAX_REMAINING`.
    """
    if context is None:
        return LOCAL_LIFETIME
    remaining = timedelta.max
    with suppress(Exception):  # as above; no number of milliseconds is an exception, too
        remaining = timedelta(milliseconds=context.get_remaining_time_in_millis())
    if remaining <= MAX_REMAINING:
        return remaining
    raise _refuse_context("its get_remaining_time_in_millis() does not return the remaining time in milliseconds")


def _refuse_context(reason: str) -> InvalidRequestError:
    return InvalidRequestError([Problem("context", f"{reason}; pass the context of Lambda, or None")])


def get_deadline(context: LambdaContext | None, *, margin: timedelta) -> float:
    """Return the time *margin* before the end of the invocation, on the monotonic clock."""
    return time.monotonic() + (get_remaining(context) - margin).total_seconds()


def may_be_repeat() -> bool:
    """Return true if Lambda may have tried this invocation before: its trace is old, or has no time.

    All tries of an invocation have one trace. Its id holds the second in which it began.
    """
    start = _TRACE_START.search(os.environ.get("_X_AMZN_TRACE_ID", ""))
    return start is None or time.time() - int(start["second"], 16) > FIRST_TRY_SEC


class Starter:
    """Starts executors by asynchronous invocations of *function*, a name or an ARN.

    A call takes at most 0.3 s after the name of the service is resolved. It raises `LaunchError` if Lambda refuses or
    does not answer.
    """

    def __init__(self, function: str, *, source: Source) -> None:
        self._function = function
        self._payload = json.dumps({"source": source}).encode()

    def start(self) -> None:
        """Invoke the function; Lambda runs it now or a little later."""
        self._invoke(InvocationType="Event", Payload=self._payload)

    def check(self) -> None:
        """Open a connection and check the permission, without an invocation."""
        self._invoke(InvocationType="DryRun")

    def _invoke(self, **request: Any) -> None:  # noqa: ANN401 - boto3's
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError  # noqa: PLC0415

        try:
            try:
                self._call(**request)
            except ConnectionClosedError:  # kept from an earlier call, perhaps through a freeze of the container
                self._call(**request)
        except ClientError as error:
            raise LaunchError(f"Lambda refused ({error.response.get('Error', {}).get('Code')})") from None
        except BotoCoreError as error:
            raise LaunchError(f"Lambda was not reached ({type(error).__name__})") from None

    def _call(self, **request: Any) -> None:  # noqa: ANN401 - boto3's
        answer = lambda_client().invoke(FunctionName=self._function, **request)
        answer["Payload"].read()  # empty; an unread body would keep the connection from the next call


@cache
def lambda_client() -> LambdaClient:
    """Return the client that starts executors, made once; it opens no connection yet.

    Raises:
        LaunchError: No region is configured.
    """
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    config = Config(connect_timeout=0.1, read_timeout=0.2, retries={"total_max_attempts": 1})
    try:
        return boto3.client("lambda", config=config)
    except BotoCoreError as error:
        raise LaunchError(f"there is no client for Lambda ({type(error).__name__})") from None


os.register_at_fork(after_in_child=lambda_client.cache_clear)  # two processes must not share its connections


def strip_qualifier(arn: object) -> str | None:
    """Return the ARN of a function without its qualifier, or ``None`` if *arn* is not the ARN of a function."""
    parts = arn.split(":") if isinstance(arn, str) else []
    if len(parts) < _ARN_PARTS or parts[2] != "lambda" or parts[5] != "function" or not all(parts[:_ARN_PARTS]):
        return None
    return ":".join(parts[:_ARN_PARTS])


class SendError(TidemillError):
    """A message was perhaps not sent; the text has the cause and no address."""


class MessageQueue:
    """A queue of SQS, by its URL. A send takes at most 1.5 s after the name of the service is resolved."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, body: str, attributes: Mapping[str, Mapping[str, Any]]) -> None:
        """Send *body* with *attributes* in the form of Lambda's SQS events.

        Raises:
            SendError: SQS refused or was not reached; the message may have been sent nevertheless.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        texts = {
            name: {"DataType": str(attribute.get("dataType")), "StringValue": str(attribute["stringValue"])}
            for name, attribute in attributes.items()
            if "stringValue" in attribute
        }
        try:
            self._client.send_message(QueueUrl=self._url, MessageBody=body, MessageAttributes=texts)
        except ClientError as error:
            raise SendError(f"SQS refused ({error.response.get('Error', {}).get('Code')})") from None
        except (BotoCoreError, ValueError) as error:  # a ValueError for an invalid URL
            raise SendError(f"SQS was not reached ({type(error).__name__})") from None

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 - boto3's
        import boto3  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        short = Config(connect_timeout=0.5, read_timeout=1, retries={"total_max_attempts": 1})
        return boto3.client("sqs", config=short)


class InvokeError(TidemillError):
    """A function gave no answer of its own, and may have run; the text has the cause and no secret."""


class NotInvokedError(InvokeError):
    """A function was not invoked."""


class RefusedEventError(InvokeError):
    """A function refused its event; the text is the function's own."""


_UNSENT: Final = (
    "ValueError", "NoRegionError", "InvalidRegionError", "ProfileNotFound", "NoCredentialsError",
    "PartialCredentialsError", "ParamValidationError", "EndpointConnectionError", "ConnectTimeoutError",
)  # fmt: skip
"""Errors of botocore before a request leaves."""


def invoke_function(
    function: str,
    event: Mapping[str, Any],
    *,
    timeout_sec: float = OPERATE_TIMEOUT_SEC,
    refusals: Collection[str] = (),
) -> Any:  # noqa: ANN401 - any JSON
    """Invoke *function*, a name or an ARN, with *event*; return its answer.

    *refusals* are the types of errors whose messages hold no secret, and of which nothing was done.

    Raises:
        RefusedEventError: The function raised one of *refusals*.
        InvokeError: The function failed, or its outcome is unknown.
        NotInvokedError: AWS refused or was not reached.
    """
    try:
        import boto3  # noqa: F401, PLC0415 - for the message; `operator_client` uses it
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise NotInvokedError(str(describe_missing_extra("--function", "boto3"))) from None
    try:
        client = operator_client(_find_region(function), timeout_sec)
        answer = client.invoke(FunctionName=function, Payload=json.dumps(event).encode())
        content = answer["Payload"].read()
    except ClientError as error:
        raise NotInvokedError(_describe_refusal(str(error.response.get("Error", {}).get("Code")), function)) from None
    except (BotoCoreError, ValueError) as error:  # a ValueError if a name or an address makes no URL
        kind = type(error).__name__
        failure = _describe_failure(kind, function, timeout_sec=timeout_sec)
        raise (NotInvokedError if kind in _UNSENT else InvokeError)(failure) from None
    if answer.get("FunctionError"):
        failure = _parse_json(content)
        if isinstance(failure, dict) and failure.get("errorType") in refusals:
            raise RefusedEventError(str(failure.get("errorMessage")))
        raise InvokeError(f"{function} failed ({_find_error_type(content)}): its log says why")
    return _parse_json(content)


def operator_client(region: str | None, timeout_sec: float = OPERATE_TIMEOUT_SEC) -> LambdaClient:
    """Return a client for `invoke_function`, in *region* or the configured region."""
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    config = Config(connect_timeout=2, read_timeout=timeout_sec, retries={"total_max_attempts": 1})
    return boto3.client("lambda", region_name=region, config=config)


def _find_region(function: str) -> str | None:
    arn = strip_qualifier(function)
    return None if arn is None else arn.split(":")[3]


def _describe_refusal(code: str, function: str) -> str:
    match code:
        case "ResourceNotFoundException":
            return f"there is no function {function} in this account and region"
        case "AccessDeniedException":
            return f"these AWS credentials may not invoke {function} (lambda:InvokeFunction)"
        case "ExpiredTokenException" | "UnrecognizedClientException" | "InvalidSignatureException":
            return f"AWS does not take these credentials ({code}): log in again"
        case _:
            return f"AWS did not invoke {function} ({code})"


def _describe_failure(kind: str, function: str, *, timeout_sec: float) -> str:
    match kind:
        case "NoRegionError" | "InvalidRegionError":
            return f"AWS needs a region ({kind}): set AWS_DEFAULT_REGION, or give the ARN of the function"
        case "ProfileNotFound":
            return "there is no such AWS profile: see AWS_PROFILE"
        case "NoCredentialsError" | "PartialCredentialsError":
            return f"there are no AWS credentials ({kind}): log in, or set AWS_PROFILE"
        case "ReadTimeoutError":
            return f"{function} did not answer within {timeout_sec:g} s; it may have done what was asked"
        case "ParamValidationError":
            return f"{function} is neither the name nor the ARN of a function"
        case _:
            return f"AWS was not reached ({kind})"


def _find_error_type(content: bytes) -> str:
    """Return the class of a function's error; its message may hold anything."""
    failure = _parse_json(content)
    kind = failure.get("errorType") if isinstance(failure, dict) else None
    return kind if isinstance(kind, str) and kind.replace(".", "").isidentifier() else "for no reason it could give"


def _parse_json(content: bytes) -> Any:  # noqa: ANN401 - any
    try:
        return json.loads(content)
    except ValueError:
        return None
