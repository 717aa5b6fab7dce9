"""Settings of a deployment, read once from the environment into a frozen value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from pydantic import ValidationError

from tidemill.documents import PREFIX_PATTERN, PREFIX_RULE
from tidemill.errors import SettingsError
from tidemill.indexes import DEFAULT_RETENTION, Retention
from tidemill.model import SELECTIONS, RetryPolicy, Selection
from tidemill.policy.retry import DEFAULT, PRESET_EXPECTED, PRESETS
from tidemill.policy.scheduling import DEFAULT_RETRY_SHARE
from tidemill.requests.events import MAX_CONCURRENCY
from tidemill.requests.tasks import NAME_PATTERN, RetryOptions
from tidemill.requests.validation import problems

TASK_PACKAGE: Final = "tasks"
"""Package whose modules register the task functions; the layer of the tasks contains it."""

_LOGICAL_ID: Final = r"(?=.*[A-Z])[A-Za-z0-9]+"
"""Name of a resource in the template: `sam local` passes it instead of a bucket's name or a secret's ARN."""

_BUCKET: Final = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one deployment; ``docs/reference/settings.md`` explains each.

    The representation leaves out ``mongodb_uri`` and ``secret_arn``.
    """

    mongodb_uri: str | None = field(default=None, repr=False)
    secret_arn: str | None = field(default=None, repr=False)
    database: str = "tidemill"
    prefix: str = ""
    task_timeout: timedelta = timedelta(seconds=30)
    max_task_timeout: timedelta = timedelta(seconds=50)
    margin: timedelta = timedelta(seconds=10)
    concurrency: int = 16
    isolated_concurrency: int | None = None
    batch_size: int = 100
    linger: timedelta = timedelta(seconds=10)
    max_executors: int = 5
    execute_function: str | None = None
    failures_queue: str | None = None
    task_package: str = TASK_PACKAGE
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE
    retry: RetryPolicy = DEFAULT
    adopt_as: str | None = None
    retention: Retention = DEFAULT_RETENTION
    expire_unexported: bool = False
    archive_bucket: str | None = None
    release: str = ""


def from_environment(env: Mapping[str, str]) -> Settings:
    """Return the settings in *env*; an empty variable counts as missing.

    Raises:
        SettingsError: Variables are malformed. The message names each of them, without its value.
    """
    problems: list[str] = []

    def read(name: str, parse: Callable[[str], _T], default: _T) -> _T:
        text = env.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as error:
            problems.append(f"{name} {error}")
            return default

    def read_reference(name: str, parse: Callable[[str], str]) -> str | None:
        is_unresolved = "AWS_SAM_LOCAL" in env and re.fullmatch(_LOGICAL_ID, env.get(name, ""))
        return None if is_unresolved else read(name, parse, None)

    default = Settings()
    settings = Settings(
        mongodb_uri=read("MONGODB_URI", str, None),
        secret_arn=read_reference("MONGODB_SECRET_ARN", str),
        database=read("MONGODB_DATABASE", _parse_database, default.database),
        prefix=read("TIDEMILL_PREFIX", _make_pattern_parser(PREFIX_PATTERN, PREFIX_RULE), default.prefix),
        task_timeout=read("TASK_TIMEOUT_SEC", _make_seconds_parser(1, 890), default.task_timeout),
        max_task_timeout=read("MAX_TASK_TIMEOUT_SEC", _make_seconds_parser(1, 890), default.max_task_timeout),
        concurrency=read("CONCURRENCY", _make_whole_parser(1, MAX_CONCURRENCY), default.concurrency),
        isolated_concurrency=read(
            "ISOLATED_CONCURRENCY", _make_whole_parser(1, MAX_CONCURRENCY), default.isolated_concurrency
        ),
        batch_size=read("BATCH_SIZE", _make_whole_parser(1, 1000), default.batch_size),
        linger=read("LINGER_SEC", _make_seconds_parser(0, 60), default.linger),
        max_executors=read("MAX_EXECUTORS", _make_whole_parser(1, 1000), default.max_executors),
        execute_function=read("EXECUTE_FUNCTION", str, None),
        failures_queue=read("FAILURES_QUEUE_URL", str, None),
        task_package=read("TASK_PACKAGE", _parse_package, default.task_package),
        retry=read("RETRY_POLICY", _parse_retry_policy, default.retry),
        selection=read("SELECTION", _parse_selection, default.selection),
        retry_share=read("RETRY_SHARE", _make_number_parser(0, 1), default.retry_share),
        adopt_as=read("DEFAULT_TASK", _make_pattern_parser(NAME_PATTERN, "must be the name of a task function"), None),
        retention=Retention(
            tasks=read("RETENTION_DAYS", _parse_days, default.retention.tasks),
            dead_letters=read("DEAD_LETTER_RETENTION_DAYS", _parse_days, default.retention.dead_letters),
        ),
        expire_unexported=read("EXPIRE_UNEXPORTED", _parse_bool, default.expire_unexported),
        archive_bucket=read_reference(
            "ARCHIVE_BUCKET", _make_pattern_parser(_BUCKET, "must be the name of an S3 bucket")
        ),
        release=read("AWS_LAMBDA_FUNCTION_VERSION", str, default.release),
    )
    if not problems and settings.task_timeout > settings.max_task_timeout:
        problems.append("TASK_TIMEOUT_SEC must not be above MAX_TASK_TIMEOUT_SEC")
    if problems:
        raise SettingsError("; ".join(problems), problems=problems)
    return settings


def _make_whole_parser(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def _make_number_parser(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return number

    return parse


def _make_seconds_parser(low: float, high: float) -> Callable[[str], timedelta]:
    parse = _make_number_parser(low, high)
    return lambda text: timedelta(seconds=parse(text))


def _make_pattern_parser(pattern: str, rule: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return parse


def _parse_days(text: str) -> timedelta:
    return timedelta(days=_make_number_parser(0.001, 3650)(text))


def _parse_bool(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text == "true"


def _parse_database(text: str) -> str:
    if any(char in '/\\. "$*<>:|?' or not char.isprintable() for char in text) or len(text.encode()) > 63:  # noqa: PLR2004 - MongoDB's limit
        raise ValueError("must be the name of a MongoDB database")
    return text


def _parse_package(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise ValueError("must be the name of a Python package")
    return text


def _parse_retry_policy(text: str) -> RetryPolicy:
    if text in PRESETS:
        return PRESETS[text]
    if not text.startswith("{"):
        raise ValueError(f"{PRESET_EXPECTED}, or a JSON object with its numbers")
    try:
        options = RetryOptions.model_validate_json(text)
        json.loads(text, object_pairs_hook=_require_unique)
    except ValidationError as error:
        found = problems(error, below="JSON")
        raise ValueError("; ".join(f"{problem.field} {problem.message}" for problem in found)) from None
    max_retries = DEFAULT.max_retries if options.max_retries is None else options.max_retries
    return RetryPolicy(max_retries=max_retries, backoff=options.backoff() or DEFAULT.backoff)


def _require_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("has a name twice")
    return value


def _parse_selection(text: str) -> Selection:
    for selection in SELECTIONS:
        if text == selection:
            return selection
    raise ValueError(f"must be one of {', '.join(SELECTIONS)}")
