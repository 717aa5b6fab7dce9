"""Loading every module of a package of tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tidemill.errors import RegistrationError
from tidemill.registry import REGISTRY, LoadedPackage, Registry, load, load_package
from tidemill.testing import perform

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

    def load_all(self, *, max_timeout: timedelta | None = None) -> LoadedPackage:
        return load_package(self.name, self.registry, max_timeout=max_timeout)

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

    assert "Python would skip " + reason.format(package.name) in package.refusal()


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

    place = f"{package.name}/inner/broken.py:3: the task module {package.name}.inner.broken cannot be imported: "
    assert message.startswith(f"{place}ModuleNotFoundError")
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
        ("from task_registry import task\n@task('f', max_retries=3)\ndef f(payload): ...", "argument 'max_retries'"),
        ("from tidemill import Backoff\nBackoff(strategy='lin')", "strategy must be one of exponential"),
        ("import tasks.nothing_like_this", "ModuleNotFoundError: No module named 'tasks.nothing_like_this'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(package: Package, source: str, told: str) -> None:  # F54
    package.write("broken", source)
    package.write("good", GOOD.format("good"))

    message = package.refusal()

    assert message.startswith(f"{package.name}/broken.py:")
    assert f": the task module {package.name}.broken cannot be imported: " in message
    assert told in message


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("@task('a b')\ndef f(payload): ...", "'a b' is no name for a task: use up to 100 letters, digits, _ . and -"),
        ("@task('f', timeout='x')\ndef f(payload): ...", "the timeout of 'f' must be 0.1 to 880 seconds"),
        ("@task('f')\ndef f(payload: str): ...", "never fits str"),
        ("@task\ndef f(payload): ...", 'a task function needs a name: write @task("name") above it, with brackets'),
    ],
)
def test_a_registration_that_is_refused_is_named_with_its_line(package: Package, source: str, told: str) -> None:
    package.write("broken", f"from task_registry import task\n{source}")
    package.write("good", GOOD.format("good"))

    message = package.refusal()

    assert message.startswith(f"{package.name}/broken.py:2: ")
    assert told in message


def test_what_a_module_says_of_what_it_connects_to_is_not_repeated(package: Package) -> None:  # F80
    package.write("broken", "raise ConnectionError('nobody at postgres://reports:S3cr3t@db.internal/reports')")

    reason = "cannot be imported: ConnectionError (broken.py:1 in <module>)"
    assert package.refusal() == f"{package.name}/broken.py:1: the task module {package.name}.broken {reason}"


def test_nor_is_what_it_says_of_a_cause(package: Package) -> None:
    source = (
        "try:\n    raise ConnectionError('nobody at postgres://reports:S3cr3t@db.internal/reports')\n"
        "except ConnectionError as error:\n    raise ImportError('no database') from error\n"
    )
    package.write("broken", source)

    message = package.refusal()

    assert "ImportError: no database (broken.py:4 in <module>)" in message
    assert "S3cr3t" not in message


def test_a_name_that_two_modules_give_is_named_with_both(package: Package) -> None:  # F54
    package.write("one", GOOD.format("same"))
    package.write("two", GOOD.format("same"))

    message = package.refusal()

    assert f"{package.name}.one.same" in message
    assert f"{package.name}.two.same" in message


@pytest.mark.parametrize("source", ["raise SystemExit", "import no_such_module"])
def test_a_package_that_cannot_be_imported_is_named_too(package: Package, source: str) -> None:
    package.write("__init__", source)

    assert package.refusal().startswith(
        f"{package.name}/__init__.py:1: the task module {package.name} cannot be imported: "
    )


@pytest.mark.parametrize(
    ("name", "told"), [("no_such_package", "there is no package"), ("json.decoder", "is a single module")]
)
def test_what_is_no_package_is_refused(name: str, told: str) -> None:
    with pytest.raises(RegistrationError, match=told):
        load(name, Registry())


def test_the_tasks_of_this_repository_are_loaded_into_the_common_registry() -> None:
    assert load("tasks") is REGISTRY
    assert {"noop", "deliver_webhook"} <= {one.name for one in REGISTRY}


def names(loaded: LoadedPackage) -> list[str]:
    return sorted(one.name for one in loaded.registry)


def test_a_fault_of_one_module_leaves_the_others(package: Package) -> None:
    package.write("broken", "\nimport no_such_module\n")
    package.write("inner/__init__", "1 / 0")
    package.write("inner/unreached", GOOD.format("unreached"))
    package.write("v1.2", "")
    package.write("good", GOOD.format("good"))

    loaded = package.load_all()

    assert names(loaded) == ["good"]
    assert [(fault.module, fault.file, fault.line, fault.name) for fault in loaded.faults] == [
        (f"{package.name}.v1.2", f"{package.name}/v1.2.py", None, None),
        (f"{package.name}.broken", f"{package.name}/broken.py", 2, None),
        (f"{package.name}.inner", f"{package.name}/inner/__init__.py", 1, None),
    ]


def test_a_fault_of_one_registration_leaves_the_others_of_its_module(package: Package) -> None:
    package.write("mixed", GOOD.format("good") + "@task('bad', timeout=0)\ndef bad(payload): ...\n")

    loaded = package.load_all()

    assert names(loaded) == ["good"]
    [fault] = loaded.faults
    assert (fault.name, fault.line) == ("bad", 5)
    assert str(fault) == f"{package.name}/mixed.py:5: the timeout of 'bad' must be 0.1 to 880 seconds"


def test_a_line_within_a_module_of_helpers_is_the_place_of_a_fault(package: Package) -> None:
    package.write("_helper", "def connect():\n    raise OSError('secret')\n")
    package.write("broken", f"from {package.name}._helper import connect\n\nconnect()\n")

    [fault] = package.load_all().faults

    assert (fault.module, fault.file, fault.line) == (f"{package.name}.broken", f"{package.name}/_helper.py", 2)


def test_the_place_of_a_syntax_error_is_its_line(package: Package) -> None:
    package.write("broken", "x = 1\n\ndef f(:\n")

    [fault] = package.load_all().faults

    assert (fault.file, fault.line) == (f"{package.name}/broken.py", 3)
    assert fault.problem.endswith(".broken cannot be imported: SyntaxError: invalid syntax (broken.py, line 3)")


def test_what_a_module_registered_before_it_failed_is_forgotten(package: Package) -> None:
    package.write("half", GOOD.format("half") + "raise OSError")

    assert names(package.load_all()) == []
    package.write("half", "raise OSError")
    assert names(package.load_all()) == []


def test_what_other_modules_registered_for_a_module_that_fails_stays(package: Package) -> None:
    package.write("b", GOOD.format("b"))
    package.write("a", f"import {package.name}.b\nraise OSError")

    assert names(package.load_all()) == ["b"]


def test_a_decorator_of_the_package_registers_for_the_module_that_uses_it(package: Package) -> None:
    package.write("_tasks", "from task_registry import task\n\ndef quick(name):\n    return task(name, timeout=5)\n")
    package.write("half", f"from {package.name}._tasks import quick\n\n@quick('half')\ndef f(payload): ...\n1 / 0\n")
    package.write("bad", f"from {package.name}._tasks import quick\n\n@quick('a b')\ndef f(payload): ...\n")

    loaded = package.load_all()

    assert names(loaded) == []
    assert [(fault.module, fault.line) for fault in loaded.faults] == [
        (f"{package.name}.half", 5),
        (f"{package.name}.bad", 3),
    ]


def test_of_two_functions_with_one_name_neither_can_be_used(package: Package) -> None:
    package.write("one", GOOD.format("same"))
    package.write("two", GOOD.format("same"))
    package.write("other", GOOD.format("other"))

    loaded = package.load_all()

    assert names(loaded) == ["other"]
    assert [fault.name for fault in loaded.faults] == ["same"]


def test_faults_are_the_same_when_a_package_is_loaded_again(package: Package) -> None:
    package.write("broken", "raise OSError")
    package.write("mixed", GOOD.format("good") + "@task('bad', timeout=0)\ndef bad(payload): ...\n")
    package.write("slow", "from task_registry import task\n@task('slow', timeout=60)\ndef slow(payload): ...\n")

    first = package.load_all(max_timeout=timedelta(seconds=50))

    assert package.load_all(max_timeout=timedelta(seconds=50)).faults == first.faults
    assert [fault.name for fault in first.faults] == [None, "bad", "slow"]


def test_a_module_that_is_mended_is_loaded_by_the_next_try(package: Package) -> None:
    package.write("broken", "raise OSError")
    assert names(package.load_all()) == []

    package.write("broken", GOOD.format("mended_now"))
    loaded = package.load_all()

    assert names(loaded) == ["mended_now"]
    assert loaded.faults == ()


def test_a_timeout_above_the_limit_is_a_fault_of_that_task_alone(package: Package) -> None:
    package.write("slow", GOOD.format("good") + "@task('slow', timeout=60)\ndef slow(payload): ...\n")

    loaded = package.load_all(max_timeout=timedelta(seconds=50))

    assert names(loaded) == ["good"]
    [fault] = loaded.faults
    assert str(fault) == (
        f"{package.name}/slow.py:5: the timeout of 'slow' is 60 s, above MAX_TASK_TIMEOUT_SEC, which is 50; "
        "lower it, or raise that setting"
    )
    assert names(package.load_all(max_timeout=timedelta(seconds=60))) == ["good", "slow"]


def test_a_module_that_a_test_imports_itself_still_raises(package: Package) -> None:
    package.load_all()

    with pytest.raises(RegistrationError, match="must be"):
        package.registry.task("bad", timeout=0)(lambda payload: payload)


def test_a_problem_is_bounded(package: Package) -> None:
    package.write("broken", f"raise ImportError({'x' * 10_000!r})")

    [fault] = package.load_all().faults

    assert len(fault.problem) <= 500


def test_the_hooks_of_a_module_that_fails_surround_nothing(package: Package) -> None:
    begin = "import sys\nregistry = sys.modules['task_registry']\n"
    hook = "@registry.task_hook\ndef hook(ctx):\n    raise OSError\n    yield\n"
    package.write("_hooks", begin + hook + "1 / 0\n")
    package.write("broken", f"from {package.name} import _hooks")
    package.write("good", GOOD.format("good"))

    loaded = package.load_all()

    assert [fault.module for fault in loaded.faults] == [f"{package.name}.broken"]
    assert perform("good", {}, registry=loaded.registry) is None
