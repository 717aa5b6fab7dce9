"""The built functions in Lambda's own runtime, wired as the built template wires them."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from pymongo import MongoClient

from tests.end_to_end.deployed import built
from tests.end_to_end.deployed.cloud import Cloud
from tests.end_to_end.deployed.endpoint import Endpoint
from tests.end_to_end.deployed.stack import StackAtWork, architecture, aws_client, changed
from tests.end_to_end.deployed.table import Table
from tidemill.testing import Mongod

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = ROOT / "build/e2e"
PYTHON: Final = ROOT / "build/runtime-venv/bin/python"
TEAM: Final = Path(__file__).parent / "team"
TABLE: Final = pytest.StashKey[Table]()
ANY_SECRET: Final = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tidemill-AbCdEf"


class Deploy(Protocol):
    """Makes a stack; what is not a parameter of the template goes by a function's logical id."""

    def __call__(
        self,
        uri: str | None = None,
        *,
        timeouts: Mapping[str, float] | None = None,
        variables: Mapping[str, Mapping[str, str]] | None = None,
        allows_recursion: bool = True,
        **parameters: str,
    ) -> StackAtWork:
        """Return the stack, on a database of its own."""


def pytest_configure(config: pytest.Config) -> None:
    """Say at once, in a sentence, what is missing."""
    config.stash[TABLE] = Table()
    if not (BUILD / "template.yaml").exists() or not PYTHON.exists():
        raise pytest.UsageError("These tests run what `make e2e` builds; run that.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print in sum what Lambda's REPORT lines would say; tools/cost.py computes with these."""
    for line in config.stash[TABLE].lines():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def template() -> Mapping[str, Any]:
    """The built template after SAM's transform."""
    return built.template(BUILD)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder with a short name, which sockets need, for what containers write."""
    with tempfile.TemporaryDirectory(prefix="tide-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def code(template: Mapping[str, Any], scratch: Path) -> Iterator[Path]:
    """The functions and their layers, unpacked."""
    some = built.read(template, {"MongoSecretArn": ANY_SECRET}, name="some")
    built.unpack(BUILD, some.functions, scratch / "var", team=TEAM)
    before = files(scratch / "var")
    yield scratch / "var"
    written = {path for path, _ in files(scratch / "var") ^ before}
    assert written == set(), "a function wrote into its own code"


@pytest.fixture(scope="session")
def stack_code(code: Path) -> Callable[[str], list[Path]]:
    """Where the code of a function lies: its task folder, and what its layers are together."""
    return lambda function: [code / "task" / function, code / "opt" / function / "python"]


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    """AWS."""
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture(scope="session")
def deploying(
    *,
    template: Mapping[str, Any],
    code: Path,
    scratch: Path,
    endpoint: Endpoint,
    mongod: Mongod,
    client: MongoClient[dict[str, Any]],
    request: pytest.FixtureRequest,
) -> Callable[[], AbstractContextManager[Deploy]]:
    """Gives out what makes stacks; when it is taken back, their containers end, and what they left is checked."""
    table = request.config.stash[TABLE]

    def deploy(
        uri: str | None = None,
        *,
        timeouts: Mapping[str, float] | None = None,
        variables: Mapping[str, Mapping[str, str]] | None = None,
        allows_recursion: bool = True,
        **parameters: str,
    ) -> StackAtWork:
        name = f"tidemill-{uuid.uuid4().hex[:8]}"
        secret = secret_of(endpoint, name, uri or mongod.uri)
        chosen = {"MongoSecretArn": secret, "MongoDatabase": name, "Architecture": architecture()} | parameters
        outputs = scratch / name
        outputs.mkdir()
        read = built.read(template, chosen, name=name)
        cloud = Cloud(
            deployment=changed(
                read, timeouts=timeouts or {}, variables=variables or {}, allows_recursion=allows_recursion
            ),
            code=code,
            outputs=outputs,
            python=PYTHON,
            environment={"AWS_ENDPOINT_URL": endpoint.url, "TMPDIR": str(scratch)},
        )
        endpoint.clouds[name] = cloud
        return StackAtWork(cloud=cloud, endpoint=endpoint, db=client[name], secret=secret, table=table)

    @contextmanager
    def lent() -> Iterator[Deploy]:
        stacks: list[StackAtWork] = []

        def kept(*args: Any, **how: Any) -> StackAtWork:
            stacks.append(deploy(*args, **how))
            return stacks[-1]

        yield kept
        for stack in stacks:
            stack.cloud.close()
            table.add_starts(stack.cloud.reports)
        for stack in stacks:
            stack.check()

    return lent


@pytest.fixture
def deploy(deploying: Callable[[], AbstractContextManager[Deploy]]) -> Iterator[Deploy]:
    """Makes stacks, each on a database of its own; they are gone after the test."""
    with deploying() as made:
        yield made


@pytest.fixture(scope="module")
def deploy_once(deploying: Callable[[], AbstractContextManager[Deploy]]) -> Iterator[Deploy]:
    """Makes stacks that are there for all tests of a module."""
    with deploying() as made:
        yield made


@pytest.fixture
def stack(deploy: Deploy) -> StackAtWork:
    """A stack as the template has it, after the first steps."""
    return deploy().start()


def files(folder: Path) -> set[tuple[Path, int]]:
    """Tell what is in a folder, and when it was changed."""
    return {(path, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def secret_of(endpoint: Endpoint, name: str, uri: str) -> str:
    """Store a URI in Secrets Manager and return the whole ARN."""
    arn: str = aws_client(endpoint, "secretsmanager").create_secret(Name=name, SecretString=uri)["ARN"]
    return arn
