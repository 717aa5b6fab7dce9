"""What a deployment chooses, read once from the environment into one frozen value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from pydantic import ValidationError

from tidemill.errors import SettingsError
from tidemill.indexes import KEPT, Retention
from tidemill.policies import SELECTIONS, RetryPolicy, Selection
from tidemill.requests import MAX_CONCURRENCY, NAME_PATTERN, RetryOptions, problems
from tidemill.retry import DEFAULT, PRESET_EXPECTED, PRESETS
from tidemill.selection import DEFAULT_RETRY_SHARE

TASK_PACKAGE: Final = "tasks"
"""The package whose modules register the task functions, as the layer of the tasks has it."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The choices of one deployment; the README's table says what each is for.

    ``mongodb_uri`` and ``secret_arn`` are left out of the representation.
    """

    mongodb_uri: str | None = field(default=None, repr=False)
    secret_arn: str | None = field(default=None, repr=False)
    database: str = "tidemill"
    task_timeout: timedelta = timedelta(seconds=30)
    max_task_timeout: timedelta = timedelta(seconds=50)
    margin: timedelta = timedelta(seconds=10)
    concurrency: int = 16
    batch_size: int = 100
    linger: timedelta = timedelta(seconds=10)
    max_executors: int = 5
    execute_function: str | None = None
    task_package: str = TASK_PACKAGE
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE
    retry: RetryPolicy = DEFAULT
    adopt_as: str | None = None
    retention: Retention = KEPT
    expire_unexported: bool = False
    archive_bucket: str | None = None
    release: str = ""


def from_environment(env: Mapping[str, str]) -> Settings:
    """Return the settings that *env* names; an empty variable is as good as none.

    Raises:
        SettingsError: Naming every variable that is malformed, without its value.
    """
    problems: list[str] = []

    def read(name: str, kind: Callable[[str], _T], default: _T) -> _T:
        text = env.get(name, "").strip()
        if not text:
            return default
        try:
            return kind(text)
        except ValueError as error:
            problems.append(f"{name} {error}")
            return default

    settings = Settings(
        mongodb_uri=read("MONGODB_URI", str, None),
        secret_arn=read("MONGODB_SECRET_ARN", str, None),
        database=read("MONGODB_DATABASE", _database, "tidemill"),
        task_timeout=read("TASK_TIMEOUT_SEC", _seconds(1, 890), timedelta(seconds=30)),
        max_task_timeout=read("MAX_TASK_TIMEOUT_SEC", _seconds(1, 890), timedelta(seconds=50)),
        concurrency=read("CONCURRENCY", _whole(1, MAX_CONCURRENCY), 16),
        batch_size=read("BATCH_SIZE", _whole(1, 1000), 100),
        linger=read("LINGER_SEC", _seconds(0, 60), timedelta(seconds=10)),
        max_executors=read("MAX_EXECUTORS", _whole(1, 1000), 5),
        execute_function=read("EXECUTE_FUNCTION", str, None),
        task_package=read("TASK_PACKAGE", _package, TASK_PACKAGE),
        retry=read("RETRY_POLICY", _retry_policy, DEFAULT),
        selection=read("SELECTION", _selection, "weighted"),
        retry_share=read("RETRY_SHARE", _number(0, 1), DEFAULT_RETRY_SHARE),
        adopt_as=read("DEFAULT_TASK", _task_name, None),
        retention=Retention(
            tasks=read("RETENTION_DAYS", _days, KEPT.tasks),
            dead_letters=read("DEAD_LETTER_RETENTION_DAYS", _days, KEPT.dead_letters),
        ),
        expire_unexported=read("EXPIRE_UNEXPORTED", _yes_or_no, default=False),
        archive_bucket=read("ARCHIVE_BUCKET", _bucket, None),
        release=read("AWS_LAMBDA_FUNCTION_VERSION", str, ""),
    )
    if not problems and settings.task_timeout > settings.max_task_timeout:
        problems.append("TASK_TIMEOUT_SEC must not be above MAX_TASK_TIMEOUT_SEC")
    if problems:
        raise SettingsError("; ".join(problems))
    return settings


def _whole(low: int, high: int) -> Callable[[str], int]:
    def kind(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(text)

    return kind


def _number(low: float, high: float) -> Callable[[str], float]:
    def kind(text: str) -> float:
        try:
            number = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return number

    return kind


def _seconds(low: float, high: float) -> Callable[[str], timedelta]:
    number = _number(low, high)
    return lambda text: timedelta(seconds=number(text))


def _days(text: str) -> timedelta:
    return timedelta(days=_number(0.001, 3650)(text))


def _yes_or_no(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text == "true"


def _bucket(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", text):
        raise ValueError("must be the name of an S3 bucket")
    return text


def _database(text: str) -> str:
    if any(char in '/\\. "$*<>:|?' or not char.isprintable() for char in text) or len(text.encode()) > 63:  # noqa: PLR2004 - MongoDB's limit
        raise ValueError("must be the name of a MongoDB database")
    return text


def _package(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise ValueError("must be the name of a Python package")
    return text


def _task_name(text: str) -> str:
    if not re.fullmatch(NAME_PATTERN, text):
        raise ValueError("must be the name of a task function")
    return text


def _retry_policy(text: str) -> RetryPolicy:
    if text in PRESETS:
        return PRESETS[text]
    if not text.startswith("{"):
        raise ValueError(f"{PRESET_EXPECTED}, or a JSON object with its numbers")
    try:
        options = RetryOptions.model_validate_json(text)
        json.loads(text, object_pairs_hook=_unique)
    except ValidationError as error:
        raise ValueError("; ".join(f"{one.field} {one.message}" for one in problems(error, below="JSON"))) from None
    max_retries = DEFAULT.max_retries if options.max_retries is None else options.max_retries
    return RetryPolicy(max_retries=max_retries, backoff=options.backoff() or DEFAULT.backoff)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("has a name twice")
    return value


def _selection(text: str) -> Selection:
    for selection in SELECTIONS:
        if text == selection:
            return selection
    raise ValueError(f"must be one of {', '.join(SELECTIONS)}")
