"""Check what `sam build` built before anybody deploys it: python layers/check_build.py FOLDER ARCH PYTHON_VERSION.

Wheels for another processor, or for another Python, are noticed by no build and no deployment: each cold start fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MACHINES = {"x86_64": 62, "arm64": 183}
"""Lambda's name of a processor to the ELF header's."""
MAX_BYTES = 30_000_000
"""What a function and all layers unpack to, at most: Lambda takes 250 MB, but each byte lengthens a cold start."""
FOR_PEOPLE = ("cli", "dev", "simulation", "testing")
"""Packages of tidemill that no function imports."""
LAYERS = {"CoreLayer": ("core", "tidemill/bootstrap.py"), "TasksLayer": ("tasks", "tasks/*.py")}
"""Each layer's folder beside this file, and what it must bring at least."""

_ELF_HEADER_BYTES = 20
_UNCHECKED_HASH = 1
_TAG = re.compile(r"\.(?P<tag>(?:cpython|pypy|graalpy|cp)[^.]*)\.(?:so|pyc)$")
_FOREIGN = {".dylib", ".pyd", ".dll"}
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==[^;\n]*$", re.MULTILINE)
_CODE = re.compile(r"^ +(?:CodeUri|ContentUri): (\w+)$", re.MULTILINE)
_HANDLER_OF_PACKAGE = "Handler: tidemill."
"""In a built template: the handlers are in the layer, as in a project that `tidemill init` wrote, and not in app.py."""
_ARCHITECTURE = re.compile(
    r"^  Architecture:\n(?:    .*\n)*?    Default: (?P<default>.+)\n    AllowedValues:\n(?P<allowed>(?:    - .+\n)+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A folder that `sam build` made, and what it was to be made for.

    Args:
        folder: Holds the built template and one folder for each function and layer.
        arch: A key of MACHINES.
        python: Such as "3.13".
    """

    folder: Path
    arch: str
    python: str

    @property
    def layers(self) -> list[Path]:
        """The folders that Lambda lays over /opt, by name."""
        return [path for path in self._parts if self._is_layer(path)]

    @property
    def functions(self) -> list[Path]:
        """The folders that become /var/task, by name."""
        return [path for path in self._parts if not self._is_layer(path)]

    @property
    def template(self) -> str:
        """The built template, as SAM writes it."""
        return (self.folder / "template.yaml").read_text(encoding="utf-8")

    @property
    def _parts(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_dir())

    @staticmethod
    def _is_layer(path: Path) -> bool:
        return path.name in LAYERS or (path / "python").is_dir()


def problems(build: Build) -> list[str]:
    """What keeps a build from being deployed, in sentences; none is well."""
    if not (build.folder / "template.yaml").is_file() or not build.layers or not build.functions:
        return [f"{build.folder} does not hold a template, functions and layers: nothing was built"]
    found = [*_for_another(build), *_left_out(build), *_leading_out(build)]
    return [*found, *_wrong_files(build), *_left_in(build), *_contradicting(build), *_too_large(build)]


def distributions(layer: str) -> list[str]:
    """The distributions that the requirements of a layer pin on every machine, by its folder's name."""
    text = (Path(__file__).parent / layer / "requirements.txt").read_text(encoding="utf-8")
    return sorted(map(_normal, _PIN.findall(text)))


def files(folder: Path) -> list[Path]:
    """Every file below a folder, by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size(folder: Path) -> int:
    """Bytes that a folder unpacks to."""
    return sum(file.stat().st_size for file in files(folder))


def summary(build: Build) -> str:
    """What was built and how large it is, a line for each layer and function."""
    title = f"built for {build.arch} and Python {build.python} in {build.folder}"
    layers = [f"  {layer.name:<18}{size(layer) / 1e6:6.2f} MB, {_bytecode(layer)}" for layer in build.layers]
    functions = [f"  {function.name:<18}{size(function) / 1e6:6.2f} MB" for function in build.functions]
    return "\n".join([title, *layers, *functions])


def main(arguments: list[str]) -> int:
    """Print the summary, or the problems: then the exit code is 1."""
    folder, arch, python = arguments
    build = Build(folder=Path(folder), arch=arch, python=python)
    found = problems(build)
    for problem in found:
        sys.stderr.write(f"tidemill: {problem}\n")
    if not found:
        sys.stdout.write(f"{summary(build)}\n")
    return 1 if found else 0


def _for_another(build: Build) -> Iterator[str]:
    found = _ARCHITECTURE.search(build.template)
    default, allowed = (
        (found["default"], re.findall(r"- (.+)", found["allowed"])) if found else ("", ["nobody knows what"])
    )
    if allowed != [build.arch]:
        yield f"template.yaml deploys for {' and '.join(allowed)}, and what was built is for {build.arch} alone"
    elif default != build.arch:
        yield f"template.yaml deploys for {default} by default, and what was built is for {build.arch} alone"


def _left_out(build: Build) -> Iterator[str]:
    for name in _CODE.findall(build.template):
        if not (build.folder / name).is_dir():
            yield f"template.yaml deploys {name}, which was not built"
    for function in build.functions:
        if _HANDLER_OF_PACKAGE not in build.template and not _is_filled(function / "app.py"):
            yield f"{function.name} has no app.py"
    for name, (folder, modules) in LAYERS.items():
        site = build.folder / name / "python"
        if not any(site.glob(modules)):
            yield f"{name} has no python/{modules}"
        brought = {_normal(path.name.partition("-")[0]) for path in site.glob("*.dist-info")}
        lacking = [one for one in distributions(folder) if one not in brought]
        if lacking:
            yield f"{name} lacks {', '.join(lacking)}, which its requirements.txt names"


def _is_filled(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _leading_out(build: Build) -> Iterator[str]:
    """What a link leads to would be deployed in its place, or nothing."""
    for part in (*build.layers, *build.functions):
        inside = build.folder.resolve() / part.name
        for path in (part, *sorted(part.rglob("*"))):
            if path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(inside)):
                yield f"{path.relative_to(build.folder)} leads out of {part.name}, or nowhere"


def _wrong_files(build: Build) -> Iterator[str]:
    """One sentence for all files that have the same fault: a wrong choice makes hundreds of them."""
    found: dict[str, list[Path]] = {}
    for file in files(build.folder):
        for wrong in _wrong(file, build):
            found.setdefault(wrong, []).append(file.relative_to(build.folder))
    for wrong, (first, *others) in found.items():
        yield f"{first} {wrong}" + (f"; {len(others)} more like it" if others else "")


def _wrong(file: Path, build: Build) -> Iterator[str]:
    with file.open("rb") as opened:
        header = opened.read(_ELF_HEADER_BYTES)
    if file.suffix == ".pyc":
        yield from _wrong_bytecode(file, header, build)
    elif header.startswith(b"\x7fELF"):
        yield from _wrong_library(file, header, build)
    elif file.suffix in {".so", *_FOREIGN}:
        yield "is no library for Linux"


def _wrong_library(file: Path, header: bytes, build: Build) -> Iterator[str]:
    if int.from_bytes(header[18:20], "little") != MACHINES[build.arch]:
        yield f"is not for {build.arch}"
    tag = _tag(file)
    if tag is not None and tag.split("-")[:2] != ["cpython", build.python.replace(".", "")]:
        yield f"is not for Python {build.python}"
    if tag is not None and "musl" in tag:
        yield "is for musl, and Lambda has glibc"


def _wrong_bytecode(file: Path, header: bytes, build: Build) -> Iterator[str]:
    if _tag(file) != f"cpython-{build.python.replace('.', '')}":
        yield f"was not made by Python {build.python}, which cannot use it"
    elif int.from_bytes(header[4:8], "little") != _UNCHECKED_HASH:
        yield "is compared with its source before each use: make it with --invalidation-mode unchecked-hash"


def _tag(file: Path) -> str | None:
    found = _TAG.search(file.name)
    return found["tag"] if found else None


def _left_in(build: Build) -> Iterator[str]:
    for layer in build.layers:
        for name in FOR_PEOPLE:
            if (layer / "python" / "tidemill" / name).exists():
                yield f"{layer.name} brings tidemill.{name}, which no function needs"
    own = [*build.functions, *(layer / "python" / name for layer in build.layers for name in ("tidemill", "tasks"))]
    for folder in own:
        for path in sorted(folder.rglob("*")):
            if path.name in {"tests", "conftest.py"} or path.match("test_*.py"):
                yield f"{path.relative_to(build.folder)} is a test"
    for function in build.functions:
        if any(function.rglob("__pycache__")):
            yield f"{function.name} brings bytecode of the machine that built it"


def _contradicting(build: Build) -> Iterator[str]:
    """All layers are laid over one /opt: of two versions of a package, parts of both would be there."""
    seen: dict[Path, Path] = {}
    for layer in build.layers:
        for file in files(layer):
            other = seen.setdefault(file.relative_to(layer), file)
            if other.read_bytes() != file.read_bytes():
                first, second = (path.relative_to(build.folder) for path in (other, file))
                yield f"{second} would overwrite {first}, which is another"


def _too_large(build: Build) -> Iterator[str]:
    layers = sum(size(layer) for layer in build.layers)
    for function in build.functions:
        whole = layers + size(function)
        if whole > MAX_BYTES:
            yield f"{function.name} and the layers take {whole / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:.0f}"


def _bytecode(layer: Path) -> str:
    return "with bytecode" if any(layer.rglob("*.pyc")) else "without bytecode: cold starts are longer"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
