"""What `make build` left: the template with its functions, layers, triggers and permissions, and their files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

from tests.cloudformation.intrinsics import Stack
from tests.cloudformation.translating import translated
from tests.end_to_end.deployed import permissions
from tests.end_to_end.deployed.permissions import Statement

_LOCATION: Final = "s3://the-build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of the stack.

    Attributes:
        folder: What is unpacked as the task folder, within the build.
        layers: What is unpacked below ``/opt``, one over the other, within the build.
        timeout: Seconds.
        memory: Megabytes.
        log_format: ``JSON`` or ``Text``.
        log_level: Of what is logged in JSON, the lowest level.
        role: ARN of the role it runs as.
        allows_recursion: Whether recursive loop detection lets it be invoked in a chain as often as it likes.
    """

    logical: str
    name: str
    arn: str
    folder: str
    handler: str
    layers: tuple[str, ...]
    timeout: float
    memory: int
    log_format: str
    log_level: str
    variables: Mapping[str, str]
    role: str
    allows_recursion: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchronous:
    """What Lambda does with asynchronous invocations of a function: 2 retries for 6 hours where nothing is said."""

    retries: int = 2
    max_age: int = 21600
    on_failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule: what it sends to which function, and as whom; and to which queue what it cannot deliver."""

    logical: str
    is_enabled: bool
    target: str
    role: str
    payload: str
    aside: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A queue that Lambda reads for a function."""

    queue: str
    function: str
    batch_size: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A stack, read.

    Attributes:
        functions: By logical id.
        asynchronous: By the name of the function.
        statements: What each role may do, by its ARN.
        routes: The function that answers a method and a path of the HTTP API, by name.
    """

    stack: Stack
    functions: Mapping[str, Function]
    asynchronous: Mapping[str, Asynchronous]
    schedules: Mapping[str, Schedule]
    sources: tuple[Source, ...]
    statements: Mapping[str, list[Statement]]
    routes: Mapping[tuple[str, str], str]


def template(build: Path) -> dict[str, Any]:
    """Return the built template after SAM's transform; the key of each code is its folder within *build*."""
    return translated(yaml_parse((build / "template.yaml").read_text()), location=_LOCATION)


def read(template: Mapping[str, Any], parameters: Mapping[str, str], *, name: str) -> Deployment:
    """Return what *template* would make with *parameters* as a stack called *name*."""
    stack = Stack(template, parameters, name=name)
    functions = _functions(stack)
    return Deployment(
        stack=stack,
        functions=functions,
        asynchronous={
            one["FunctionName"]: Asynchronous(
                retries=int(one["MaximumRetryAttempts"]),
                max_age=int(one["MaximumEventAgeInSeconds"]),
                on_failure=one.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination"),
            )
            for one in stack.of_type("AWS::Lambda::EventInvokeConfig").values()
        },
        schedules=_schedules(stack),
        sources=_sources(stack),
        statements=permissions.by_role(stack),
        routes=_routes(stack, functions),
    )


def unpack(build: Path, functions: Mapping[str, Function], to: Path, *, team: Path) -> None:
    """Lay out the code as Lambda does: ``task/FUNCTION`` and ``opt/FUNCTION``, which nobody may write to.

    What is in *team* comes into the layer of the task functions, as a team's own modules do in ``layers/tasks``.
    """
    for function in functions.values():
        shutil.copytree(build / function.folder, to / "task" / function.logical)
        opt = to / "opt" / function.logical
        for layer in function.layers:
            shutil.copytree(build / layer, opt, dirs_exist_ok=True)
        if (opt / "python/tasks").is_dir():
            shutil.copytree(team, opt / "python", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [to, *to.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)


def _functions(stack: Stack) -> dict[str, Function]:
    folders = {
        stack.arn(logical): layer["Content"]["S3Key"]
        for logical, layer in stack.of_type("AWS::Lambda::LayerVersion").items()
    }
    return {
        logical: Function(
            logical=logical,
            name=stack.name_of(logical),
            arn=stack.arn(logical),
            folder=one["Code"]["S3Key"],
            handler=one["Handler"],
            layers=tuple(folders[layer] for layer in one["Layers"]),
            timeout=float(one["Timeout"]),
            memory=int(one["MemorySize"]),
            log_format=one["LoggingConfig"].get("LogFormat", "Text"),
            log_level=one["LoggingConfig"].get("ApplicationLogLevel", "INFO"),
            variables={name: str(value) for name, value in one["Environment"]["Variables"].items()},
            role=one["Role"],
            allows_recursion=one.get("RecursiveLoop", "Terminate") == "Allow",
        )
        for logical, one in stack.of_type("AWS::Lambda::Function").items()
    }


def _schedules(stack: Stack) -> dict[str, Schedule]:
    return {
        logical: Schedule(
            logical=logical,
            is_enabled=one.get("State", "ENABLED") == "ENABLED",
            target=one["Target"]["Arn"],
            role=one["Target"]["RoleArn"],
            payload=one["Target"]["Input"],
            aside=one["Target"].get("DeadLetterConfig", {}).get("Arn"),
        )
        for logical, one in stack.of_type("AWS::Scheduler::Schedule").items()
    }


def _sources(stack: Stack) -> tuple[Source, ...]:
    names = {stack.name_of(logical): logical for logical in stack.of_type("AWS::Lambda::Function")}
    sources = stack.of_type("AWS::Lambda::EventSourceMapping").values()
    assert all(one["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for one in sources)
    return tuple(
        Source(
            queue=one["EventSourceArn"],
            function=names[one["FunctionName"]],
            batch_size=int(one["BatchSize"]),
            concurrency=int(one["ScalingConfig"]["MaximumConcurrency"]),
        )
        for one in sources
    )


def _routes(stack: Stack, functions: Mapping[str, Function]) -> dict[tuple[str, str], str]:
    """Read the HTTP API: the integrations name the functions by their ARNs."""
    names = {one.arn: one.name for one in functions.values()}
    [api] = stack.of_type("AWS::ApiGateway::RestApi").values()
    routes = {}
    for path, methods in api["Body"]["paths"].items():
        for method, one in methods.items():
            [name] = [name for arn, name in names.items() if arn in json.dumps(one)]
            routes[method.upper(), path] = name
    return routes
