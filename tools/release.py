"""`make release`: build the distribution, try it in an empty environment, and write the notes. It publishes nothing.

Only files that git has are built from, so that nothing which lies about gets into the distribution.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tidemill import __version__

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build/release"
MAX_WHEEL_BYTES: Final = 1_000_000
_NOT_SHIPPED: Final = re.compile(r"(^|/)(__pycache__|\.[^/]+|conftest\.py|test_[^/]+\.py)(/|$)|\.pyc$")
_OF_PROJECTS: Final = "tidemill/cli/project/"
"""Files that `tidemill init` writes, a test among them."""


class ReleaseError(Exception):
    """The distribution is not fit to be published; the message says why and what to do."""


def read_notes(changelog: str, version: str) -> str:
    """Return the section of *version* in the text *changelog*.

    Raises:
        ReleaseError: There is no section, or it is empty.
    """
    sections = dict(re.findall(r"^## (\d+\.\d+\.\d+)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    notes: str = sections.get(version, "").strip()
    if not notes:
        raise ReleaseError(f"CHANGELOG.md has no section for {version}; write one, with the heading ## {version}")
    return notes + "\n"


def check_wheel(wheel: Path) -> None:
    """Look for tests, caches and too many bytes in the file *wheel*.

    Raises:
        ReleaseError: There are some; the message names all.
    """
    faults = list(_find_faults(wheel))
    if faults:
        raise ReleaseError("; ".join(faults))


def _find_faults(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if _NOT_SHIPPED.search(name.removeprefix(_OF_PROJECTS)) and not name.startswith(f"{_OF_PROJECTS}tests/"):
                yield f"{name} does not belong into the wheel; take it out of the package"
    size = wheel.stat().st_size
    if size > MAX_WHEEL_BYTES:
        yield f"the wheel has {size} bytes, more than {MAX_WHEEL_BYTES}; look for large files in it"


def build_distribution(python: Path, folder: Path) -> Path:
    """Build sdist and wheel into *folder* with the tools of *python*; return the wheel.

    Raises:
        ReleaseError: They cannot be built, or `twine check` finds a fault.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as sources:
        listed = _run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "layers/core"])
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                target = Path(sources, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        _run([python, "-m", "build", "--no-isolation", "--outdir", folder, Path(sources, "layers/core")])
    _run([python, "-m", "twine", "check", "--strict", *folder.iterdir()])
    [wheel] = folder.glob("*.whl")
    return wheel


def try_out(wheel: Path) -> None:
    """Install *wheel* into an empty environment, and use it there: an import, the command, a project.

    Raises:
        ReleaseError: A step failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _run([sys.executable, "-m", "venv", place / "venv"])
        programs = place / "venv/bin"
        install: list[str | Path] = [
            programs / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        _run([*install, wheel])
        _run([programs / "python", "-c", "from tidemill import Queue, task"], cwd=place)
        _run([*install, f"{wheel}[cli]"])
        printed = _run([programs / "tidemill", "--version"], cwd=place).strip()
        if printed != f"tidemill {__version__}":
            raise ReleaseError(f"the wheel says {printed!r}, not tidemill {__version__}; build it again")
        _run([programs / "tidemill", "init", "project"], cwd=place)


def _run(command: Sequence[str | Path], *, cwd: Path = ROOT) -> str:
    """Run *command* without this program's PYTHONPATH; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        output = f"{done.stdout}{done.stderr}".strip()
        raise ReleaseError(f"`{' '.join(map(str, command))}` failed; its output says why:\n{output}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Build, check and describe the release. *arguments*: the Python with the tools."""
    try:
        notes = read_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)
        wheel = build_distribution(Path(arguments[0]).absolute(), FOLDER)
        check_wheel(wheel)
        try_out(wheel)
    except ReleaseError as error:
        sys.stderr.write(f"tidemill: {error}\n")
        return 1
    (FOLDER.parent / "release-notes.md").write_text(notes, encoding="utf-8")
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB")
    print(f"\nNotes of {__version__}, in build/release-notes.md:\n\n{notes}")
    print("Nothing was published. To publish: twine upload build/release/*")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
