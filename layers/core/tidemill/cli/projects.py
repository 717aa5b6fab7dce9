"""Projects that ``tidemill init`` writes: which file is written, kept or offered, and the record of what was written.

No change of a user is overwritten. ``.tidemill.json`` holds the version and a hash for each file that was written. A
file with another hash was changed by the user. Lines between ``>>> yours: NAME`` and ``<<< yours`` belong to the user:
they are in no hash, and an upgrade keeps them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias

from tidemill import __version__
from tidemill.errors import TidemillError

RECORD: Final = ".tidemill.json"
"""File in a project that holds the version and the hashes."""

Action: TypeAlias = Literal["created", "updated", "offered", "removed", "kept", "left out"]
"""Outcome for one file: new; rewritten; a newer version beside a changed file; removed, as this version does not have
it; left, since it was there before or was changed; not written, since the user deleted it."""

_REGION: Final = re.compile(
    r"^(?P<begin>[^\n]*>>> yours: (?P<name>[^\n]+)\n)(?P<lines>(?:[^\n]*\n)*?)(?P<end>[^\n]*<<< yours)$", re.MULTILINE
)
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class ProjectError(TidemillError):
    """The project cannot be written or upgraded; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Version of Tidemill, and the text of each file of its projects by path."""

    version: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file of a plan: the text to write at *path*, if there is one, and *reason* for what is not plain."""

    path: str
    action: Action
    text: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Changes of the project in *folder*, and the record after them: *version* and the hash of each file.

    The hash is ``None`` for a file that was there before Tidemill.
    """

    folder: Path
    version: str
    changes: tuple[Change, ...]
    hashes: Mapping[str, str | None]

    def apply(self) -> None:
        """Write the files, each whole or not at all, and the record last.

        Raises:
            ProjectError: The folder cannot be written. A repeated call completes the work.
        """
        try:
            for change in self.changes:
                path = self.folder / change.path
                if change.text is not None:
                    _write(path, change.text)
                elif change.action == "removed":
                    path.unlink(missing_ok=True)
                    _remove_empty_parents(path, self.folder)
            record = {"version": self.version, "files": dict(sorted(self.hashes.items()))}
            _write(self.folder / RECORD, json.dumps(record, indent=2) + "\n")
        except OSError as error:
            place = error.filename or self.folder
            raise ProjectError(
                f"{place} cannot be written: {error.strerror}; correct that and repeat the command"
            ) from None


def read_release() -> Release:
    """Return the installed version and the files that it writes."""
    folder = files("tidemill.cli").joinpath("project")
    texts = {_restore_name(path): text.replace("{{ version }}", __version__) for path, text in _read_all(folder, "")}
    return Release(version=__version__, files=texts)


def plan_project(folder: Path, release: Release) -> Plan:
    """Return the plan for a new project. Files that are there are kept.

    Raises:
        ProjectError: *folder* is no folder, or is a project already.
    """
    _require_folder(folder)
    if (folder / RECORD).exists():
        raise ProjectError(f"{folder} is a project already; `tidemill init --upgrade` brings it up to date")
    return _make_plan(folder, release, {})


def plan_upgrade(folder: Path, release: Release) -> Plan:
    """Return the plan that brings the project in *folder* to *release*.

    Raises:
        ProjectError: *folder* is no project, its record cannot be read, or a newer version wrote it.
    """
    _require_folder(folder)
    version, hashes = _read_record(folder)
    if _split_version(version) > _split_version(release.version):
        raise ProjectError(
            f"tidemill {version} wrote this project, and {release.version} is installed; "
            f"install the newer version: pip install 'tidemill[cli]>={version}'"
        )
    return _make_plan(folder, release, hashes)


def _make_plan(folder: Path, release: Release, recorded: Mapping[str, str | None]) -> Plan:
    changes = [_plan_file(folder, release, path, recorded) for path in sorted(release.files)]
    gone = sorted(path for path, found in recorded.items() if path not in release.files and found is not None)
    changes += [_plan_removal(folder, path, recorded[path]) for path in gone]
    return Plan(
        folder=folder,
        version=release.version,
        changes=tuple(change for change in changes if change is not None),
        hashes={path: _hash_after(folder, path, text, recorded) for path, text in release.files.items()},
    )


def _hash_after(folder: Path, path: str, text: str, recorded: Mapping[str, str | None]) -> str | None:
    """Return the hash to record: ``None`` for a file that was there before Tidemill."""
    new = compute_hash(text)
    if recorded.get(path) is not None:
        return new
    current = _read(folder / path)
    return new if current is None or compute_hash(current) == new else None


def _plan_file(folder: Path, release: Release, path: str, recorded: Mapping[str, str | None]) -> Change | None:
    """Return the change for one file of *release*; ``None`` if there is nothing to say about it."""
    new, current = release.files[path], _read(folder / path)
    new_hash = compute_hash(new)
    if path not in recorded:
        if current is None:
            return Change(path=path, action="created", text=new)
        if compute_hash(current) == new_hash:
            return None  # an earlier run was interrupted
        return Change(path=path, action="kept", reason="it was there before")
    before = recorded[path]
    if before is None or before == new_hash:
        return None  # not written by us, or the same in both versions
    if current is None:
        return Change(path=path, action="left out", reason="you deleted it")
    return _plan_newer_text(folder, release, path, current=current, before=before)


def _plan_newer_text(folder: Path, release: Release, path: str, *, current: str, before: str) -> Change | None:
    new = release.files[path]
    if compute_hash(current) == compute_hash(new):
        return None
    merged = _merge_regions(new, current)
    if compute_hash(current) == before and merged is not None:
        return Change(path=path, action="updated", text=merged)
    beside = f"{path}.tidemill-{release.version}"
    offered = _read(folder / beside)
    if offered is not None and offered != new:
        return Change(path=path, action="kept", reason=f"you changed it, and {beside} is there already")
    return Change(path=beside, action="offered", text=new, reason=f"you changed {path}: merge the two by hand")


def _plan_removal(folder: Path, path: str, before: str | None) -> Change | None:
    current = _read(folder / path)
    if current is None:
        return None
    if compute_hash(current) == before and not _find_regions(current):
        return Change(path=path, action="removed", reason="this version has no such file")
    return Change(path=path, action="kept", reason="this version has no such file, but you changed it")


def compute_hash(text: str) -> str:
    """Return the hash of *text* without its regions of the user, and without the difference of line ends."""
    ours = _REGION.sub(r"\g<begin>\g<end>", text.replace("\r\n", "\n"))
    return hashlib.sha256(ours.encode("utf-8", "surrogateescape")).hexdigest()


def _find_regions(text: str) -> dict[str, str]:
    return {found["name"]: found["lines"] for found in _REGION.finditer(text.replace("\r\n", "\n"))}


def _merge_regions(new: str, current: str) -> str | None:
    """Return *new* with the regions of *current*; ``None`` if a region would be lost."""
    regions = _find_regions(current)
    if not regions.keys() <= _find_regions(new).keys():
        return None
    return _REGION.sub(lambda found: found["begin"] + regions.get(found["name"], found["lines"]) + found["end"], new)


def _read_record(folder: Path) -> tuple[str, dict[str, str | None]]:
    text = _read(folder / RECORD)
    if text is None:
        raise ProjectError(f"{folder} is no project of Tidemill: {RECORD} is missing; `tidemill init` writes one")
    try:
        record = json.loads(text)
        version, hashes = record["version"], dict(record["files"])
        if _VERSION.fullmatch(version) and all(map(_is_entry, hashes.items())):
            return version, hashes
    except (ValueError, TypeError, KeyError):
        pass
    raise ProjectError(f"{folder / RECORD} is damaged; restore it from version control")


def _is_entry(entry: tuple[str, str | None]) -> bool:
    path, found = PurePosixPath(entry[0]), entry[1]
    return not path.is_absolute() and ".." not in path.parts and (found is None or bool(_HASH.fullmatch(found)))


def _split_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _require_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ProjectError(f"{folder} is a file; name a folder, which may be new")


def _read(path: Path) -> str | None:
    """Return the text at *path*, or ``None`` if nothing is there.

    Raises:
        ProjectError: It cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        if path.is_symlink():
            raise ProjectError(f"{path} is a link that leads nowhere; remove it") from None
        return None
    except OSError as error:
        raise ProjectError(f"{path} cannot be read: {error.strerror}; move it or choose another folder") from None


def _write(path: Path, text: str) -> None:
    """Replace *path* by a file with *text*; a process that is killed leaves the file as it was."""
    path = path.resolve()  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.tidemill-unfinished")
    unfinished.write_bytes(text.encode("utf-8", "surrogateescape"))
    if path.exists():
        unfinished.chmod(path.stat().st_mode & 0o777)
    unfinished.replace(path)


def _remove_empty_parents(path: Path, folder: Path) -> None:
    for parent in path.relative_to(folder).parents[:-1]:
        with suppress(OSError):  # it has other files
            (folder / parent).rmdir()


def _read_all(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_file() and not entry.name.endswith(".pyc"):
            yield prefix + entry.name, entry.read_text(encoding="utf-8")
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _read_all(entry, f"{prefix}{entry.name}/")


def _restore_name(path: str) -> str:
    """Return the name in a project: a wheel holds no file whose name begins with a dot."""
    return ".gitignore" if path == "gitignore" else path
