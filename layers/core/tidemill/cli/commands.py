"""The commands of ``tidemill``: groups that import a command when it is called, shared options, and types of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import reduce
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from tidemill import __version__
from tidemill.cli.output import print_stderr, print_text, warn
from tidemill.errors import SettingsError
from tidemill.settings import Settings, from_environment
from tidemill.text import did_you_mean

_T = TypeVar("_T")

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")  # in place of a byte that is no UTF-8
_WRONG_USAGE: Final = 2
_MAX_DURATION: Final = timedelta(days=10_000)
_UNITS: Final = {
    "s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)
}  # fmt: skip


def run_command(words: Sequence[str]) -> int:
    """Run the command that *words* name. Return 0, or 2 after the usage was printed on stderr.

    Raises:
        TidemillError: The command failed.
    """
    if _LONE_SURROGATE.search("".join(words)):
        _print_usage_error(click.UsageError("the arguments must be UTF-8"))
        return _WRONG_USAGE
    try:
        with _root.make_context("tidemill", list(words)) as context:
            _root.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print_stderr(error.message)
        return _WRONG_USAGE
    except click.UsageError as error:
        _print_usage_error(error)
        return _WRONG_USAGE
    return 0


def _print_usage_error(error: click.UsageError) -> None:
    context = error.ctx or click.Context(_root, info_name="tidemill")
    print_stderr(context.get_usage())
    warn(_describe_usage_error(error, context))
    if isinstance(context.command, Command):
        print_stderr(f"for example: {context.command.example}")


def _describe_usage_error(error: click.UsageError, context: click.Context) -> str:
    help_hint = f"`{context.command_path} --help` lists the options"
    match error:
        case click.exceptions.NoSuchOption(option_name=name):
            known = [option for parameter in context.command.params for option in parameter.opts]
            return f"there is no option {name}{did_you_mean(name, known) or ';'} {help_hint}"
        case click.MissingParameter(param=click.Parameter() as parameter):
            return f"{parameter.human_readable_name.split()[0]} is missing; {help_hint}"
        case click.BadParameter(param=click.Parameter() as parameter):
            name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
            return f"{name}: {error.message.removesuffix('.')}"
    message = error.format_message().removesuffix(".")
    return f"{message[0].lower()}{message[1:]}" if message[:2].istitle() else message


def _print_help(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - by click
    if value and not context.resilient_parsing:
        print_text(context.get_help())
        context.exit()


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - by click
    if value and not context.resilient_parsing:
        print_text(f"tidemill {__version__}")
        context.exit()


class _PrintedHelp(click.Command):
    """Command whose ``--help`` is printed like any other output."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse *args*; each wrong usage refers to this command.

        Raises:
            UsageError: The arguments are wrong.
        """
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return ``--help``."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _print_help
        return option


class Command(_PrintedHelp):
    """Command with an example, which is shown in its help and with each wrong usage. *note* ends the help."""

    def __init__(self, *arguments: Any, example: str, note: str = "", **options: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*arguments, **options)
        self.help = f"{self.help}\n\n{note}"
        self.short_help = self.get_short_help_str(limit=200)
        self.epilog = f"Example: {example}"
        self.example = example


class Operation(Command):
    """Command for one operation, with ``--json`` and ``--function``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of `Command`
        super().__init__(*arguments, **options)
        self.params += [build_json_option(), build_function_option()]


class Group(_PrintedHelp, click.Group):
    """Group of commands. *imports* has ``module:attribute`` and a summary for each command that is imported late."""

    command_class = Operation

    def __init__(self, name: str, summary: str, *parameters: click.Parameter, **imports: tuple[str, str]) -> None:
        super().__init__(
            name, help=summary, short_help=summary, params=list(parameters), subcommand_metavar="COMMAND ..."
        )
        self.imports = imports
        for command, (_, short_help) in imports.items():
            self.add_command(click.Command(command, short_help=short_help))  # for the help, until it is called

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """Return the names of all commands, in the order of their definition."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that *args* begin with, imported now if need be.

        Raises:
            UsageError: There is no such command.
        """
        name = args[0]
        if not name.startswith("-") and name not in self.commands:
            below = [group.name for group in self.commands.values() if name in getattr(group, "commands", ())]
            hint = f", did you mean {below[0]} {name}?" if below else did_you_mean(name, self.commands) or ";"
            ctx.fail(f"there is no command {name}{hint} `{ctx.command_path} --help` lists all")
        if name in self.imports:
            module, attribute = self.imports[name][0].split(":")
            self.add_command(getattr(import_module(module), attribute))
        return super().resolve_command(ctx, args)


def parse_duration(text: str) -> timedelta:
    """Return a duration like 30m, 6h or 7d.

    Raises:
        BadParameter: *text* is no such duration.
    """
    if duration := _read_duration(text):
        return duration
    raise click.BadParameter("must be like 30m, 6h or 7d")


def parse_time(text: str) -> datetime:
    """Return a time in UTC, from ISO 8601 or a duration before now. A time without a zone is in UTC.

    Raises:
        BadParameter: *text* is neither.
    """
    duration = _read_duration(text)
    if duration is not None:
        return datetime.now(UTC) - duration
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    raise click.BadParameter("must be like 30m, 6h or 7d, or a time like 2026-07-01T09:00")


def _read_duration(text: str) -> timedelta | None:
    found = re.fullmatch("([0-9]{1,5})([smhd])", text)
    duration = found and int(found[1]) * _UNITS[found[2]]
    return duration if duration is not None and duration <= _MAX_DURATION else None


def parse_whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of a whole number from *least* to *most*."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise click.BadParameter(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


def parse_setting(variable: str, read: Callable[[Settings], _T]) -> Callable[[str], _T]:
    """Return a parser with the rules of the setting *variable*, which *read* takes from all settings."""

    def parse(text: str) -> _T:
        try:
            return read(from_environment({variable: text or "-"}))
        except SettingsError as error:
            raise click.BadParameter(str(error).removeprefix(f"{variable} ")) from None

    return parse


def parse_text(pattern: str, problem: str) -> Callable[[str], str]:
    """Return a parser of text that *pattern* matches; otherwise *problem* is the message."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise click.BadParameter(problem)
        return text

    return parse


def add_options(
    *options: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds *options* of click in this order."""
    return lambda function: reduce(lambda decorated, add: add(decorated), reversed(options), function)


def build_json_option() -> click.Option:
    """Return ``--json``, which `is_json_wanted` reads."""
    return click.Option(["--json"], is_flag=True, callback=_keep, expose_value=False, help="Print the answer as JSON.")


def build_function_option(called: str = "operate") -> click.Option:
    """Return ``--function``, for the function *called* so; it may stand before or after the name of an operation."""
    return click.Option(
        ["--function"],
        type=parse_text(r"[A-Za-z0-9_:$.-]+", "must be the name or the ARN of a function"),
        callback=_keep,
        expose_value=False,
        metavar="NAME",
        help=f"Call the {called} function with this name or ARN instead of connecting to MONGODB_URI.",
    )


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keep *value*, if it is given, in `click.Context.meta`, which all contexts of a command share."""
    if value:
        context.meta[str(parameter.name)] = value


def read_function() -> str | None:
    """Return the function that this command calls, or ``None`` if it connects to MONGODB_URI."""
    function: str | None = click.get_current_context().meta.get("function")
    return function


def is_json_wanted() -> bool:
    """Return whether ``--json`` was given."""
    return bool(click.get_current_context().meta.get("json"))


_ops: Final = Group(
    "ops",
    "Inspect and operate queues and tasks.",
    build_function_option(),
    queue=("tidemill.cli.queues:queue", "List, show, declare, pause, resume and configure queues."),
    task=("tidemill.cli.tasks:task", "List, show, explain, retry and cancel tasks."),
    caller=("tidemill.cli.callers:caller", "List, grant and revoke the rights of API keys."),
    stats=("tidemill.cli.queues:stats", "Show statistics of retries."),
)
_root: Final = Group(
    "tidemill",
    "Operate a Tidemill queue. MONGODB_URI, MONGODB_DATABASE and TIDEMILL_PREFIX name its collections.",
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Show the version and exit.",
    ),
    init=("tidemill.cli.init:init", "Write a project that deploys tasks of your own, or upgrade it."),
    check=("tidemill.cli.check:check", "Find what would fail in a deployment."),
    dev=("tidemill.cli.dev:dev", "Run everything on this machine: MongoDB, your tasks, the HTTP API."),
    enqueue=("tidemill.cli.enqueue:enqueue", "Enqueue a task, or many from lines of JSON."),
    dlq=("tidemill.cli.dlq:dlq", "List, show, redrive, purge, export and restore dead letters."),
    policy=("tidemill.cli.policies:policy", "Show the retry presets and their delays."),
    simulate=("tidemill.cli.policies:simulate", "Simulate retry policies on a virtual clock."),
    work=("tidemill.cli.work:work", "Run due tasks until stopped."),
    indexes=("tidemill.cli.operations:create_indexes", "Create missing indexes, in collections of any size."),
)
_root.commands = {"ops": _ops, **_root.commands}
