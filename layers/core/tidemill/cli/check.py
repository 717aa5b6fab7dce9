"""``tidemill check``: find before a deployment what would fail in it, without a MongoDB."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
from click import option

from tidemill.cli.commands import Command, build_json_option, is_json_wanted, parse_setting, parse_text, parse_whole
from tidemill.cli.output import clean, print_json, print_text
from tidemill.dev.tracebacks import find_import_error, format_place
from tidemill.errors import SettingsError, TidemillError
from tidemill.module_faults import Fault
from tidemill.registry import LoadedPackage, load_package
from tidemill.settings import Settings, from_environment

MAX_FRAMES: Final = 3
"""Frames that are printed of a failed import."""

_TEMPLATES: Final = ("template.yaml", "template.yml")
_SAM_CONFIG: Final = "samconfig.toml"
_EXECUTE_TIMEOUT: Final = "ExecuteTimeout"
_LITERAL: Final = re.compile(r"""\s+([A-Z][A-Z0-9_]+):\s+(?:"([^"]*)"|'([^']*)'|([^\s!{\[&*#"'][^\s#]*))\s*(?:#.*)?""")
"""A variable of the template with a fixed value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """Variables that a deployment will have, as far as files and this shell say, and the place of each."""

    values: dict[str, str] = field(default_factory=dict, repr=False)
    places: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: str, place: str) -> None:
        """Set a variable, instead of an earlier value."""
        self.values[name], self.places[name] = value, place


@click.command(
    "check",
    cls=Command,
    help="Find what would fail in a deployment.",
    note=(
        "It imports the task modules and needs no MongoDB. Settings come from this shell, from samconfig.toml and from "
        "the fixed values of template.yaml. The status is 1 if there is a fault."
    ),
    example="tidemill check --execute-timeout 300",
)
@option(
    "--tasks",
    "package",
    type=parse_setting("TASK_PACKAGE", lambda settings: settings.task_package),
    metavar="PACKAGE",
    help="Package of task modules, also found in the current directory. Default: TASK_PACKAGE, or tasks.",
)
@option(
    "--execute-timeout",
    type=parse_whole(30, 900),
    metavar="SECONDS",
    help="Parameter ExecuteTimeout of the deployment. Default: that of samconfig.toml, else of template.yaml.",
)
@option(
    "--config-env",
    type=parse_text(r"[A-Za-z0-9_-]+", "must be the name of an environment of samconfig.toml"),
    default="default",
    metavar="NAME",
    help="Environment of samconfig.toml. Default: default.",
)
def check(*, package: str | None, execute_timeout: int | None, config_env: str) -> None:
    """Check the settings and the package, and print each fault."""
    folder = Path.cwd()
    variables = _read_variables(folder, execute_timeout=execute_timeout, config_env=config_env)
    faults, settings = _read_settings(variables)
    package = package or settings.task_package
    sys.path.insert(0, str(folder))
    with redirect_stdout(sys.stderr):  # modules may print while they are imported
        loaded = load_package(package, max_timeout=settings.max_task_timeout)
    if not len(loaded.registry) and not loaded.faults:
        faults.append({"problem": f"the modules of {package} register no task function"})
    faults += [_describe_fault(fault, package) for fault in loaded.faults]
    source = variables.places.get("MAX_TASK_TIMEOUT_SEC", "the default")
    _print_result(package, loaded, faults, longest=settings.max_task_timeout, source=source)


check.params += [build_json_option()]


def _print_result(
    package: str, loaded: LoadedPackage, faults: list[dict[str, Any]], *, longest: timedelta, source: str
) -> None:
    names = sorted(function.name for function in loaded.registry)
    if is_json_wanted():
        print_json(
            {
                "package": package,
                "functions": names,
                "max_task_timeout_sec": longest.total_seconds(),
                "faults": faults,
            }
        )
    for fault in () if is_json_wanted() else faults:
        place = "".join(f"{fault[part]}:" for part in ("file", "line") if fault.get(part) is not None)
        print_text(f"{place}{' ' if place else ''}{clean(fault['problem'])}")
        for line in fault.get("traceback", ()):
            print_text(f"  {line}")
    if faults:
        count = "1 fault: correct it" if len(faults) == 1 else f"{len(faults)} faults: correct them"
        raise TidemillError(f"{count} before you deploy")
    if not is_json_wanted():
        functions = f"{len(names)} task {'function' if len(names) == 1 else 'functions'}"
        print_text(f"no fault: {functions} of {package}; attempts of up to {longest.total_seconds():g} s ({source})")


def _describe_fault(fault: Fault, package: str) -> dict[str, Any]:
    """Return *fault* for the output, with the last frames of a failed import and without its message."""
    error = None if fault.name else _import_again(fault.module, package)
    frames = [] if error is None else format_place(error, limit=MAX_FRAMES)
    described = {"file": fault.file, "line": fault.line, "name": fault.name, "problem": fault.problem}
    return described | ({"traceback": frames} if frames else {})


def _import_again(module: str, package: str) -> BaseException | None:
    with redirect_stdout(sys.stderr):
        return find_import_error(module, package)


def _read_settings(variables: Variables) -> tuple[list[dict[str, Any]], Settings]:
    """Return a fault for each malformed variable, and the settings without these."""
    try:
        return [], from_environment(variables.values)
    except SettingsError as error:
        malformed = {problem.split()[0] for problem in error.problems}
        sound = {name: value for name, value in variables.values.items() if name not in malformed}
        return [_locate_setting(problem, variables) for problem in error.problems], from_environment(sound)


def _locate_setting(problem: str, variables: Variables) -> dict[str, Any]:
    file, _, line = variables.places.get(problem.split(maxsplit=1)[0], "").partition(":")
    place = {"file": file, "line": int(line)} if line else {}
    return place | {"problem": f"{problem}{'' if line or not file else f' ({file})'}"}


def _read_variables(folder: Path, *, execute_timeout: int | None, config_env: str) -> Variables:
    """Return the variables: those of this shell go before those of files, and an option goes before both."""
    variables = Variables()
    for name in _TEMPLATES:
        if (folder / name).is_file():
            _read_template(folder / name, variables)
    timeout = _read_override(folder / _SAM_CONFIG, config_env)
    if timeout is not None:
        _set_limit(variables, timeout, f"{_EXECUTE_TIMEOUT} {timeout:g} of {_SAM_CONFIG}")
    for name, value in os.environ.items():
        if value:
            variables.set(name, value, "this shell")
    if execute_timeout is not None:
        _set_limit(variables, execute_timeout, f"{_EXECUTE_TIMEOUT} {execute_timeout}")
    return variables


def _set_limit(variables: Variables, execute_timeout: float, place: str) -> None:
    """Set the longest timeout of a task: with the margin it fits into *execute_timeout* seconds twice."""
    longest = timedelta(seconds=execute_timeout) / 2 - Settings().margin
    variables.set("MAX_TASK_TIMEOUT_SEC", f"{longest.total_seconds():g}", place)


def _read_template(template: Path, variables: Variables) -> None:
    """Read the fixed values of variables, and the default of the parameter ExecuteTimeout, line by line."""
    parameter = ""
    for number, line in enumerate(template.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        found = _LITERAL.fullmatch(line)
        if found:
            variables.set(found[1], next(filter(None, found.groups()[1:]), ""), f"{template.name}:{number}")
        if heading := re.fullmatch(r"  (\w+):\s*", line):
            parameter = heading[1]
        default = re.fullmatch(r"""    Default:\s+["']?(\d+)["']?\s*""", line)
        if default and parameter == _EXECUTE_TIMEOUT and "MAX_TASK_TIMEOUT_SEC" not in variables.values:
            _set_limit(variables, int(default[1]), f"{_EXECUTE_TIMEOUT} {default[1]} of {template.name}")


def _read_override(config: Path, environment: str) -> float | None:
    """Return ExecuteTimeout of ``parameter_overrides`` in samconfig.toml; ``None`` without it."""
    if not config.is_file():
        return None
    try:
        content = tomllib.loads(config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TidemillError(f"{config.name}: is not valid TOML ({clean(str(error))})") from None
    parameters = _get(_get(_get(content, environment), "deploy"), "parameters")
    for name, value in _read_overrides(parameters.get("parameter_overrides")):
        if name == _EXECUTE_TIMEOUT and value.isdecimal():
            return float(value)
    return None


def _read_overrides(overrides: object) -> Iterator[tuple[str, str]]:
    """Yield names and values; SAM takes a text, a list of texts, or a table."""
    if isinstance(overrides, dict):
        yield from ((str(name), str(value)) for name, value in overrides.items())
        return
    words = shlex.split(overrides) if isinstance(overrides, str) else overrides if isinstance(overrides, list) else []
    for word in words:
        name, _, value = str(word).partition("=")
        yield name, value.strip("\"'")


def _get(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, dict) else {}
