"""What is refused before it is deployed, on builds of a few small files."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bson
import pytest

from layers import check_build
from layers.check_build import MACHINES, MAX_BYTES, Build, distributions, main, problems, summary

LIBRARY = "CoreLayer/python/bson/_cbson.cpython-313-aarch64-linux-gnu.so"
BYTECODE = "CoreLayer/python/bson/__pycache__/son.cpython-313.pyc"


def elf(machine: str) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + MACHINES[machine].to_bytes(2, "little") + bytes(44)


def bytecode(flags: int) -> bytes:
    return b"\xf3\x0d\x0d\x0a" + flags.to_bytes(4, "little") + bytes(8)


UNCHECKED, CHECKED, TIMESTAMP = bytecode(0b01), bytecode(0b11), bytecode(0b00)

TEMPLATE = b"""\
Parameters:
  Architecture:
    Type: String
    Description: Processor of the functions, which is a long
      line
    Default: arm64
    AllowedValues:
    - arm64
Resources:
  EnqueueFunction:
    Properties:
      CodeUri: EnqueueFunction
  CoreLayer:
    Properties:
      ContentUri: CoreLayer
  TasksLayer:
    Properties:
      ContentUri: TasksLayer
"""
SOUND = {
    "template.yaml": TEMPLATE,
    "EnqueueFunction/app.py": b"def lambda_handler(event, context): ...\n",
    "CoreLayer/python/tidemill/bootstrap.py": b"",
    "CoreLayer/python/tidemill/__pycache__/bootstrap.cpython-313.pyc": UNCHECKED,
    **{f"CoreLayer/python/{name.replace('-', '_')}-1.0.dist-info/METADATA": b"" for name in distributions("core")},
    "CoreLayer/python/bson/__init__.py": b"",
    LIBRARY: elf("arm64"),
    BYTECODE: UNCHECKED,
    "TasksLayer/python/tasks/noop.py": b"",
}

Lay = Callable[..., Build]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """Lays down a sound build of arm64 and Python 3.13, with more files or others; None leaves one out."""

    def laid(changes: dict[str, bytes | None] | None = None) -> Build:
        for name, content in {**SOUND, **(changes or {})}.items():
            if content is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return Build(folder=tmp_path, arch="arm64", python="3.13")

    return laid


def test_a_build_for_the_processor_and_the_python_asked_for_is_sound(lay: Lay) -> None:
    assert problems(lay()) == []


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        pytest.param(LIBRARY, elf("x86_64"), "is not for arm64", id="another processor"),
        pytest.param("TasksLayer/python/lib/libz.so.1", elf("x86_64"), "is not for arm64", id="a versioned library"),
        pytest.param("TasksLayer/python/lib/tool", elf("x86_64"), "is not for arm64", id="a program"),
        pytest.param(LIBRARY, b"\xcf\xfa\xed\xfe" + bytes(60), "is no library for Linux", id="built on macOS"),
        pytest.param(LIBRARY, b"", "is no library for Linux", id="empty"),
        pytest.param("CoreLayer/python/a.dylib", bytes(64), "is no library for Linux", id="of macOS by name"),
        pytest.param("CoreLayer/python/a.cp313-win_amd64.pyd", b"MZ", "is no library for Linux", id="of Windows"),
        pytest.param(
            "CoreLayer/python/a.cpython-311-aarch64-linux-gnu.so",
            elf("arm64"),
            "is not for Python 3.13",
            id="another Python",
        ),
        pytest.param(
            "CoreLayer/python/a.cpython-313t-aarch64-linux-gnu.so",
            elf("arm64"),
            "is not for Python 3.13",
            id="a Python without its lock",
        ),
        pytest.param(
            "CoreLayer/python/a.pypy311-pp73-aarch64-linux-gnu.so",
            elf("arm64"),
            "is not for Python 3.13",
            id="another implementation",
        ),
        pytest.param(
            "CoreLayer/python/a.cpython-313-aarch64-linux-musl.so",
            elf("arm64"),
            "is for musl, and Lambda has glibc",
            id="another C library",
        ),
        pytest.param(
            "CoreLayer/python/__pycache__/a.cpython-311.pyc",
            UNCHECKED,
            "was not made by Python 3.13, which cannot use it",
            id="bytecode of another Python",
        ),
        pytest.param(
            "CoreLayer/python/a.pyc",
            UNCHECKED,
            "was not made by Python 3.13, which cannot use it",
            id="bytecode of nobody knows what",
        ),
    ],
)
def test_a_file_that_lambda_could_not_load_is_named(lay: Lay, name: str, content: bytes, problem: str) -> None:
    assert problems(lay({name: content})) == [f"{name} {problem}"]


@pytest.mark.parametrize("content", [TIMESTAMP, CHECKED])
def test_bytecode_that_is_compared_with_its_source_is_refused(lay: Lay, content: bytes) -> None:
    [problem] = problems(lay({BYTECODE: content}))

    assert problem.startswith(f"{BYTECODE} is compared with its source")


@pytest.mark.parametrize(
    "name",
    [
        "CoreLayer/python/a.abi3.so",
        "TasksLayer/python/numpy.libs/libgfortran-83c28eba.so.5.0.0",
        "TasksLayer/python/lib/libz.so",
    ],
)
def test_a_library_that_serves_every_python_is_taken(lay: Lay, name: str) -> None:
    assert problems(lay({name: elf("arm64")})) == []


def test_a_fault_of_many_files_is_said_once(lay: Lay) -> None:
    old = {f"CoreLayer/python/__pycache__/m{n}.cpython-311.pyc": UNCHECKED for n in range(100)}

    [problem] = problems(lay(dict(old)))

    assert problem.startswith("CoreLayer/python/__pycache__/m0.cpython-311.pyc was not made by Python 3.13")
    assert problem.endswith("; 99 more like it")


@pytest.mark.parametrize("package", ["cli", "dev", "simulation", "testing"])
def test_what_only_people_use_is_not_shipped(lay: Lay, package: str) -> None:
    build = lay({f"CoreLayer/python/tidemill/{package}/__init__.py": b""})

    assert problems(build) == [f"CoreLayer brings tidemill.{package}, which no function needs"]


@pytest.mark.parametrize(
    "name",
    ["EnqueueFunction/test_app.py", "CoreLayer/python/tidemill/conftest.py", "TasksLayer/python/tasks/test_noop.py"],
)
def test_tests_are_not_shipped(lay: Lay, name: str) -> None:
    assert problems(lay({name: b""})) == [f"{name} is a test"]


def test_the_tests_within_a_package_of_others_are_its_own_affair(lay: Lay) -> None:
    assert problems(lay({"TasksLayer/python/numpy/tests/test_all.py": b""})) == []


def test_a_function_brings_no_bytecode(lay: Lay) -> None:
    build = lay({"EnqueueFunction/__pycache__/app.cpython-313.pyc": UNCHECKED})

    assert problems(build) == ["EnqueueFunction brings bytecode of the machine that built it"]


def test_two_versions_of_a_package_are_not_laid_over_each_other(lay: Lay) -> None:
    build = lay({"TasksLayer/python/bson/__init__.py": b"version = 2"})

    assert problems(build) == [
        "TasksLayer/python/bson/__init__.py would overwrite CoreLayer/python/bson/__init__.py, which is another"
    ]


def test_the_same_package_in_two_layers_does_no_harm(lay: Lay) -> None:
    assert problems(lay({"TasksLayer/python/bson/__init__.py": b""})) == []


@pytest.mark.parametrize(("over", "expected"), [(0, 0), (1, 1)])
def test_a_function_and_all_layers_have_a_size_at_most(lay: Lay, over: int, expected: int) -> None:
    build = lay({"EnqueueFunction/data": b"", "TasksLayer/python/data": b""})
    taken = sum(check_build.size(part) for part in (*build.layers, *build.functions))
    grow(build.folder / "TasksLayer/python/data", MAX_BYTES - taken - 10)
    grow(build.folder / "EnqueueFunction/data", 10 + over)

    found = problems(build)

    assert len(found) == expected
    assert all("EnqueueFunction and the layers take 30.0 MB, more than 30" in problem for problem in found)


def grow(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)  # a hole: takes no room on the disk


def test_the_distributions_of_a_layer_are_those_it_pins() -> None:
    assert {"pymongo", "pydantic-core", "aws-lambda-powertools"} <= set(distributions("core"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"EnqueueFunction/app.py": b""}, "EnqueueFunction has no app.py"),
        ({"ArchiveFunction/readme": b"x"}, "ArchiveFunction has no app.py"),
        ({"CoreLayer/python/tidemill/bootstrap.py": None}, "CoreLayer has no python/tidemill/bootstrap.py"),
        ({"TasksLayer/python/tasks/noop.py": None, "TasksLayer/python/z": b""}, "TasksLayer has no python/tasks/*.py"),
        ({"TasksLayer/python/tasks/noop.py": None, "TasksLayer/z": b"x"}, "TasksLayer has no python/tasks/*.py"),
        (
            {"CoreLayer/python/pymongo-1.0.dist-info/METADATA": None, "CoreLayer/python/pymongo_x-1.dist-info/a": b""},
            "CoreLayer lacks pymongo, which its requirements.txt names",
        ),
        (
            {
                "CoreLayer/python/pydantic_core-1.0.dist-info/METADATA": None,
                "CoreLayer/python/dnspython-1.0.dist-info/METADATA": None,
            },
            "CoreLayer lacks dnspython, pydantic-core, which its requirements.txt names",
        ),
        (
            {"template.yaml": TEMPLATE.replace(b"Uri: EnqueueFunction", b"Uri: GoneFunction")},
            "template.yaml deploys GoneFunction, which was not built",
        ),
    ],
)
def test_what_was_left_out_is_named(lay: Lay, changes: dict[str, bytes | None], problem: str) -> None:
    assert problems(lay(changes)) == [problem]


@pytest.mark.parametrize(
    ("allowed", "deploys"), [(b"    - x86_64\n", "x86_64"), (b"    - arm64\n    - x86_64\n", "arm64 and x86_64")]
)
def test_a_template_that_deploys_for_another_processor_is_refused(lay: Lay, allowed: bytes, deploys: str) -> None:
    template = TEMPLATE.replace(b"    - arm64\n", allowed)

    assert problems(lay({"template.yaml": template})) == [
        f"template.yaml deploys for {deploys}, and what was built is for arm64 alone"
    ]


def test_a_template_whose_default_is_another_processor_is_refused(lay: Lay) -> None:
    template = TEMPLATE.replace(b"Default: arm64", b"Default: x86_64")

    assert problems(lay({"template.yaml": template})) == [
        "template.yaml deploys for x86_64 by default, and what was built is for arm64 alone"
    ]


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../../..", "../CoreLayer/python/bson/__init__.py", "nowhere/at all"]
)
def test_a_link_that_leads_out_of_its_function_or_layer_is_refused(lay: Lay, target: str) -> None:
    build = lay()
    (build.folder / "EnqueueFunction" / "link").symlink_to(target)

    assert "EnqueueFunction/link leads out of EnqueueFunction, or nowhere" in problems(build)


def test_a_function_that_is_a_link_itself_is_refused(lay: Lay) -> None:
    build = lay()
    (build.folder / "OperateFunction").symlink_to(build.folder / "EnqueueFunction")

    assert "OperateFunction leads out of OperateFunction, or nowhere" in problems(build)


def test_a_link_within_a_layer_is_taken(lay: Lay) -> None:
    build = lay({"TasksLayer/python/lib/libz.so.1": elf("arm64")})
    (build.folder / "TasksLayer/python/lib/libz.so").symlink_to("libz.so.1")

    assert problems(build) == []


@pytest.mark.parametrize("part", ["template.yaml", "EnqueueFunction/app.py"])
def test_a_folder_without_a_build_is_refused(lay: Lay, part: str) -> None:
    build = lay({part: None})

    assert problems(build) == [f"{build.folder} does not hold a template, functions and layers: nothing was built"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    [problem] = problems(Build(folder=tmp_path / "nothing", arch="arm64", python="3.13"))

    assert "nothing was built" in problem


def test_the_sizes_are_told(lay: Lay) -> None:
    build = lay({"TasksLayer/python/data": bytes(1_234_567)})

    assert summary(build).splitlines() == [
        f"built for arm64 and Python 3.13 in {build.folder}",
        "  CoreLayer           0.00 MB, with bytecode",
        "  TasksLayer          1.23 MB, without bytecode: cold starts are longer",
        "  EnqueueFunction     0.00 MB",
    ]


def test_the_command_fails_a_build_that_is_not_sound(lay: Lay, capsys: pytest.CaptureFixture[str]) -> None:
    build = lay({LIBRARY: elf("x86_64")})

    assert main([str(build.folder), "arm64", "3.13"]) == 1

    assert capsys.readouterr() == ("", f"tidemill: {LIBRARY} is not for arm64\n")


def test_the_command_runs_anywhere_with_nothing_installed(lay: Lay) -> None:
    command = [sys.executable, "-ISE", check_build.__file__, str(lay().folder), "arm64", "3.13"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env={})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("built for arm64 and Python 3.13 in ")


def test_bytecode_that_this_python_makes_is_read_rightly(lay: Lay, tmp_path: Path) -> None:
    lay({name: None for name in SOUND if ".pyc" in name or ".so" in name})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compile_all, str(tmp_path / "CoreLayer")], check=True)

    assert problems(Build(folder=tmp_path, arch="arm64", python=version)) == []


def test_a_library_of_this_machine_is_read_rightly(lay: Lay) -> None:
    [library] = Path(bson.__file__).parent.glob("_cbson.cpython-*.so")
    content = {
        **{name: None for name in SOUND if ".pyc" in name or ".so" in name},
        f"CoreLayer/python/bson/{library.name}": library.read_bytes(),
    }
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    def found_in_a_build_for(arch: str) -> list[str]:
        folder = lay({**content, "template.yaml": TEMPLATE.replace(b"arm64", arch.encode())}).folder
        return problems(Build(folder=folder, arch=arch, python=version))

    found = {arch: found_in_a_build_for(arch) for arch in MACHINES}

    assert found.pop("arm64" if platform.machine() in {"aarch64", "arm64"} else "x86_64") == []
    assert all("is not for" in problem for [problem] in found.values())
