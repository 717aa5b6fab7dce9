"""Loading every module of a package of tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.errors import RegistrationError
from tidemill.registry import REGISTRY, Registry, load

GOOD = "from task_registry import task\n\n@task('{0}')\ndef {0}(payload): ...\n"


class Package:
    """A package of task modules on disk, and the registry they register with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = Registry()
        self.name = f"tasks_{folder.name}"
        (folder / self.name).mkdir()
        self.write("__init__", "")

    def write(self, module: str, source: str) -> None:
        file = self.folder / self.name / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)

    def load(self) -> list[str]:
        return sorted(one.name for one in load(self.name, self.registry))

    def refusal(self) -> str:
        with pytest.raises(RegistrationError) as caught:
            self.load()
        return str(caught.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    before = set(sys.modules)
    made = Package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "task_registry", made.registry)
    yield made
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_every_module_is_imported_but_those_with_an_underscore(package: Package) -> None:
    package.write("b", GOOD.format("b"))
    package.write("a", GOOD.format("a"))
    package.write("_helper", "raise SystemExit")

    assert package.load() == ["a", "b"]


def test_the_packages_in_it_are_imported_as_well_but_those_with_an_underscore(package: Package) -> None:
    package.write("inner/__init__", GOOD.format("inner"))
    package.write("inner/b", GOOD.format("b"))
    package.write("inner/_helper", "raise SystemExit")
    package.write("_private/__init__", "raise SystemExit")
    package.write("_private/c", "raise SystemExit")
    package.write("a", GOOD.format("a"))

    assert package.load() == ["a", "b", "inner"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["v1.2"], "v1.2.py in the package {0}: its name has a dot; rename it, or begin its name with _"),
        (["mails", "mails/__init__"], "mails.py in the package {0}: the folder mails has the same name; rename one"),
        (["mails/send"], "mails in the package {0}: it has no __init__.py; add one, or begin its name with _"),
        (["inner/__init__", "inner/mails/send"], "mails in the package {0}.inner: it has no __init__.py"),
    ],
)  # fmt: skip
def test_a_file_that_python_would_skip_is_refused_with_its_name(
    package: Package, files: list[str], reason: str
) -> None:
    for file in files:
        package.write(file, "raise SystemExit" if "__init__" not in file else "")

    assert package.refusal().startswith("Python would skip " + reason.format(package.name))


def test_files_that_are_no_modules_may_lie_beside_them(package: Package) -> None:
    package.write("a", GOOD.format("a"))
    package.write("send-mail", GOOD.format("mail"))
    package.write("2fa", GOOD.format("twice"))
    package.write("_private/c", "raise SystemExit")
    package.write("__main__", "raise SystemExit")
    package.write(".hidden/c", "raise SystemExit")
    (package.folder / package.name / "templates").mkdir()
    (package.folder / package.name / "templates" / "mail.html").write_text("<p>")
    (package.folder / package.name / "README.md").write_text("# Tasks")

    assert package.load() == ["a", "mail", "twice"]


def test_a_module_deep_within_that_cannot_be_imported_is_named_with_its_line(package: Package) -> None:
    package.write("inner/__init__", "")
    package.write("inner/broken", "\n\nimport no_such_module\n")

    message = package.refusal()

    assert message.startswith(f"the task module {package.name}.inner.broken cannot be imported: ModuleNotFoundError")
    assert message.endswith("(broken.py:3 in <module>)")


def test_loading_again_changes_nothing(package: Package) -> None:
    package.write("a", GOOD.format("a"))

    assert package.load() == package.load() == ["a"]


def test_an_empty_package_has_no_tasks(package: Package) -> None:
    assert package.load() == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; sys.exit()", "SystemExit"),
        ("import sys; sys.exit(0)", "SystemExit (broken.py:1 in <module>)"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("1 / 0", "ZeroDivisionError (broken.py:1 in <module>)"),
        ("def", "SyntaxError"),
        ("raise type('', (Exception,), {'__str__': lambda _: 7})", "exception without a name (broken.py:1"),
        ("from task_registry import task\n@task('a b')\ndef f(payload): ...", "is no name for a task"),
        ("from task_registry import task\n@task('f', timeout='x')\ndef f(payload): ...", "the timeout of 'f'"),
        ("from task_registry import task\n@task\ndef f(payload): ...", 'write @task("name") above it'),
        ("from task_registry import task\n@task('f', max_retries=3)\ndef f(payload): ...", "argument 'max_retries'"),
        ("from tidemill import Backoff\nBackoff(strategy='lin')", "strategy must be one of exponential"),
        ("import tasks.nothing_like_this", "ModuleNotFoundError: No module named 'tasks.nothing_like_this'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(package: Package, source: str, told: str) -> None:  # F54
    package.write("broken", source)
    package.write("good", GOOD.format("good"))

    message = package.refusal()

    assert message.startswith(f"the task module {package.name}.broken cannot be imported: ")
    assert told in message


def test_what_a_module_says_of_what_it_connects_to_is_not_repeated(package: Package) -> None:  # F80
    package.write("broken", "raise ConnectionError('nobody at postgres://reports:S3cr3t@db.internal/reports')")

    assert package.refusal() == (
        f"the task module {package.name}.broken cannot be imported: ConnectionError (broken.py:1 in <module>)"
    )


def test_a_name_that_two_modules_give_is_named_with_both(package: Package) -> None:  # F54
    package.write("one", GOOD.format("same"))
    package.write("two", GOOD.format("same"))

    message = package.refusal()

    assert f"{package.name}.one.same" in message
    assert f"{package.name}.two.same" in message


@pytest.mark.parametrize("source", ["raise SystemExit", "import no_such_module"])
def test_a_package_that_cannot_be_imported_is_named_too(package: Package, source: str) -> None:
    package.write("__init__", source)

    assert package.refusal().startswith(f"the task module {package.name} cannot be imported: ")


@pytest.mark.parametrize(
    ("name", "told"), [("no_such_package", "there is no package"), ("json.decoder", "is a single module")]
)
def test_what_is_no_package_is_refused(name: str, told: str) -> None:
    with pytest.raises(RegistrationError, match=told):
        load(name, Registry())


def test_the_tasks_of_this_repository_are_loaded_into_the_common_registry() -> None:
    assert load("tasks") is REGISTRY
    assert {"noop", "deliver_webhook"} <= {one.name for one in REGISTRY}
