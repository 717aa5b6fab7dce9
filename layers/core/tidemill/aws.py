"""What Tidemill asks AWS for: the secret that holds MongoDB's URI, executors to be started, an operator's questions.

boto3 is imported where something is asked for: that costs 0.3 s, which a plain URI does not need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tidemill.errors import SettingsError, TidemillError
from tidemill.summon import SummonError

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

SummonSource: TypeAlias = Literal["wake", "backlog"]

DOUBT_SEC: Final = 10.0
"""How long a secret is not looked at again, though MongoDB cannot be found."""

PATIENCE_SEC: Final = 20.0
"""How long an operator waits for the function that is asked."""

_ARN_PARTS: Final = 7
"""``arn:aws:lambda:region:account:function:name``, before a qualifier."""


class Secret:
    """MongoDB's URI in a secret that is it, or JSON with a field ``uri``: read once, and again where there is reason.

    Reading raises `SettingsError` where the secret cannot be read, or is something else; nothing of it is shown.
    """

    def __init__(self, arn: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._arn = arn
        self._monotonic = monotonic
        self._uri: str | None = None
        self._read_at = -DOUBT_SEC
        self._is_doubted = False

    def uri(self) -> str:
        """Return the URI."""
        if self._uri is None:
            self._uri = self._read(attempts=2)
        return self._uri

    def has_changed(self) -> bool:
        """Read it again, and tell whether it is another one than before."""
        before, self._uri = self._uri, self._read(attempts=1)
        return self._uri != before

    def forget(self) -> None:
        """Have it read again by whoever asks next: it cannot be used."""
        self._uri = None

    def doubt(self) -> None:
        """Note that nobody was found where it leads to."""
        self._is_doubted = True

    def is_doubted(self) -> bool:
        """Tell whether it may have been changed for that: not more often than every `DOUBT_SEC`."""
        return self._is_doubted and self._monotonic() - self._read_at >= DOUBT_SEC

    def _read(self, *, attempts: int) -> str:
        self._is_doubted = False
        self._read_at = self._monotonic()
        return _uri_in(_secret_text(self._arn, attempts=attempts))


def unqualified(arn: object) -> str | None:
    """Return the ARN of a function without a qualifier, or ``None`` where *arn* is none of a function."""
    parts = arn.split(":") if isinstance(arn, str) else []
    if len(parts) < _ARN_PARTS or parts[2] != "lambda" or parts[5] != "function" or not all(parts[:_ARN_PARTS]):
        return None
    return ":".join(parts[:_ARN_PARTS])


class Starter:
    """Starts executors: *function* is the name or ARN of the function that is one.

    Calls take 0.3 s at most once a name is resolved, and raise `SummonError` where Lambda says no, or nothing.
    """

    def __init__(self, function: str, *, source: SummonSource) -> None:
        self._function = function
        self._payload = json.dumps({"source": source}).encode()

    def start(self) -> None:
        """Have Lambda start one, which it does at once or a little later."""
        self._invoke(InvocationType="Event", Payload=self._payload)

    def check(self) -> None:
        """Do all that `start` does but start: a connection is open then, and the permission known."""
        self._invoke(InvocationType="DryRun")

    def _invoke(self, **how: Any) -> None:  # noqa: ANN401 - boto3's
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError  # noqa: PLC0415

        try:
            try:
                self._call(**how)
            except ConnectionClosedError:  # it was kept since an earlier call, perhaps through a freeze
                self._call(**how)
        except ClientError as error:
            raise SummonError(f"Lambda refused ({error.response.get('Error', {}).get('Code')})") from None
        except BotoCoreError as error:
            raise SummonError(f"Lambda was not reached ({type(error).__name__})") from None

    def _call(self, **how: Any) -> None:  # noqa: ANN401 - boto3's
        answer = lambda_client().invoke(FunctionName=self._function, **how)
        answer["Payload"].read()  # empty; but unread it would keep the connection from the next call


@cache
def lambda_client() -> LambdaClient:
    """Return the client for summoning, made once; it does not connect yet.

    Raises:
        SummonError: There is no region to call.
    """
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    short = Config(connect_timeout=0.1, read_timeout=0.2, retries={"total_max_attempts": 1})
    try:
        return boto3.client("lambda", config=short)
    except BotoCoreError as error:
        raise SummonError(f"there is no client for Lambda ({type(error).__name__})") from None


_UNSENT: Final = (
    "ValueError", "NoRegionError", "InvalidRegionError", "ProfileNotFound", "NoCredentialsError",
    "PartialCredentialsError", "ParamValidationError", "EndpointConnectionError", "ConnectTimeoutError",
)  # fmt: skip
"""What botocore raises before a request leaves."""


class InvokeError(TidemillError):
    """A function that was to be asked gave no answer of its own; the message says why, and shows no secret."""


class NotInvokedError(InvokeError):
    """It was not asked at all."""


def invoked(function: str, event: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return what *function*, by its name or ARN, answers to *event*.

    Raises:
        InvokeError: The function failed, or nobody knows what became of it.
        NotInvokedError: AWS was not reached, or refused.
    """
    try:
        import boto3  # noqa: F401, PLC0415 - for the sentence; `operator_client` takes it
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise NotInvokedError("--function needs the package boto3: pip install boto3") from None
    try:
        answer = operator_client(_region(function)).invoke(FunctionName=function, Payload=json.dumps(event).encode())
        content = answer["Payload"].read()
    except ClientError as error:
        raise NotInvokedError(_refusal(str(error.response.get("Error", {}).get("Code")), function)) from None
    except (BotoCoreError, ValueError) as error:  # a ValueError where a name or an address makes no URL
        kind = type(error).__name__
        raise (NotInvokedError if kind in _UNSENT else InvokeError)(_failure(kind, function)) from None
    if answer.get("FunctionError"):
        raise InvokeError(f"{function} failed ({_error_type(content)}): its log says why")
    return _json(content)


def operator_client(region: str | None) -> LambdaClient:
    """Return a client for `invoked`; *region* is the one that an ARN names."""
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    patient = Config(connect_timeout=2, read_timeout=PATIENCE_SEC, retries={"total_max_attempts": 1})
    return boto3.client("lambda", region_name=region, config=patient)


def _region(function: str) -> str | None:
    arn = unqualified(function)
    return None if arn is None else arn.split(":")[3]


def _refusal(code: str, function: str) -> str:
    match code:
        case "ResourceNotFoundException":
            return f"there is no function {function} in this account and region"
        case "AccessDeniedException":
            return f"these AWS credentials may not invoke {function} (lambda:InvokeFunction)"
        case "ExpiredTokenException" | "UnrecognizedClientException" | "InvalidSignatureException":
            return f"AWS does not take these credentials ({code}): log in again"
        case _:
            return f"AWS did not invoke {function} ({code})"


def _failure(kind: str, function: str) -> str:
    match kind:
        case "NoRegionError" | "InvalidRegionError":
            return f"AWS needs a region ({kind}): set AWS_DEFAULT_REGION, or give the ARN of the function"
        case "ProfileNotFound":
            return "there is no such AWS profile: see AWS_PROFILE"
        case "NoCredentialsError" | "PartialCredentialsError":
            return f"there are no AWS credentials ({kind}): log in, or set AWS_PROFILE"
        case "ReadTimeoutError":
            return f"{function} did not answer within {PATIENCE_SEC:g} s; it may have done what was asked"
        case "ParamValidationError":
            return f"{function} is neither the name nor the ARN of a function"
        case _:
            return f"AWS was not reached ({kind})"


def _error_type(content: bytes) -> str:
    """Return the kind of a function's failure; its message may hold anything."""
    failure = _json(content)
    kind = failure.get("errorType") if isinstance(failure, dict) else None
    return kind if isinstance(kind, str) and kind.replace(".", "").isidentifier() else "for no reason it could give"


def _json(content: bytes) -> Any:  # noqa: ANN401 - any
    try:
        return json.loads(content)
    except ValueError:
        return None


def _uri_in(text: str) -> str:
    try:
        stored = json.loads(text)
    except ValueError:
        return text.strip()
    if isinstance(stored, dict) and isinstance(stored.get("uri"), str):
        return str(stored["uri"]).strip()
    raise SettingsError("the secret in MONGODB_SECRET_ARN must be a URI, or JSON with a field uri")


def _secret_text(arn: str, *, attempts: int) -> str:
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    short = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": attempts})
    try:
        return str(boto3.client("secretsmanager", config=short).get_secret_value(SecretId=arn)["SecretString"])
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        hint = ": may this role read it, and decrypt it with its KMS key?" if code == "AccessDeniedException" else ""
        raise SettingsError(f"the secret in MONGODB_SECRET_ARN cannot be read ({code}){hint}") from None
    except (BotoCoreError, KeyError) as error:
        raise SettingsError(f"the secret in MONGODB_SECRET_ARN cannot be read ({type(error).__name__})") from None
