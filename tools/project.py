"""The files of `tidemill init` that the repository has, too: `make project` writes them into the package.

The template, the events and the pins of the layer have one source, the repository's. A project differs from it only by
the replacements below: its folders, the names of its handlers, and an example of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "layers/core/tidemill/cli/project"
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+==[^\s\\]+(?: ; [^\\\n]+?)?) *\\?$", re.MULTILINE)
_REGION: Final = r"( *# >>> yours: {}\n)(?:.*\n)*?( *# <<< yours\n)"
_OMITTED_EVENTS: Final = frozenset({"enqueue_webhook.json"})
"""Events for tasks that a project does not have."""

_TEMPLATE: Final = (
    (r"  # What `sam publish`(?:.*\n)*?(?=  AWS::CloudFormation::Interface)", ""),
    (r"    Handler: app\.lambda_handler\n", ""),
    (r"( +)CodeUri: functions/(\w+)\n", r"\1CodeUri: functions\n\1Handler: tidemill.handlers.\2.lambda_handler\n"),
    (r"ContentUri: layers/", "ContentUri: "),
    (r"(docs/operate/deploy\.md|tests/[\w/]+\.py)", r"\1 of Tidemill"),
    (r"\bnoop\b", "greet"),
    (
        r"(  Architecture:\n    Type: String\n    Description: )>-\n(?:      .*\n)+",
        r"\1Processor of the functions. core/Makefile builds for the default, so no other is taken." + "\n",
    ),
)
"""Patterns of the repository's template, and what a project has instead. Each must occur."""

_REGIONS: Final = {
    "processor": """
    Default: arm64 # or x86_64, in both lines
    AllowedValues: [arm64]
""",
    "variables of the tasks": """
          GREETING: Hello # for the example; no secrets: everybody who may see the function can read its variables
""",
    "policies of the tasks": """
        # What your tasks may do in AWS. For example:
        # - PolicyName: tasks
        #   PolicyDocument:
        #     Version: "2012-10-17"
        #     Statement:
        #       - Effect: Allow
        #         Action: s3:GetObject
        #         Resource: arn:aws:s3:::BUCKET/*
""",
}
"""Contents of regions that a project begins with, where they are not the repository's."""


def build_files(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each file that is written, by its path in the project.

    Raises:
        ValueError: A replacement has no place in the template any more; the message names its pattern.
    """
    events = {
        f"events/{path.name.replace('noop', 'greet')}": _read(path).replace("noop", "greet")
        for path in sorted((root / "events").glob("*.json"))
        if path.name not in _OMITTED_EVENTS
    }
    return {
        "template.yaml": _replace_all(_read(root / "template.yaml")),
        "samconfig.toml": _read(root / "samconfig.toml"),
        "core/requirements.txt": _list_pins(_read(root / "layers/core/requirements.txt")),
        **events,
    }


def find_stale(folder: Path = FOLDER, root: Path = ROOT) -> list[str]:
    """Return the sorted paths below *folder* that differ from their source, or have none any more."""
    wanted = build_files(root)
    found = {path.relative_to(folder).as_posix() for path in (folder / "events").glob("*.json")}
    return sorted(
        name
        for name in wanted.keys() | found
        if name not in wanted or not (folder / name).is_file() or _read(folder / name) != wanted[name]
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _replace_all(template: str) -> str:
    for pattern, replacement in _TEMPLATE:
        template = _replace(template, pattern, replacement)
    for name, content in _REGIONS.items():
        template = _replace(template, _REGION.format(re.escape(name)), rf"\1{content.lstrip(chr(10))}\2")
    return template


def _replace(text: str, pattern: str, replacement: str) -> str:
    replaced, count = re.subn(pattern, replacement, text)
    if not count:
        raise ValueError(f"tools/project.py: template.yaml has no {pattern!r} any more; change the replacement")
    return replaced


def _list_pins(lock: str) -> str:
    head = "# What the functions run on: tidemill, and what it was tested with. `tidemill init --upgrade` changes it."
    return "\n".join([head, "tidemill[lambda]=={{ version }}", *_PIN.findall(lock)]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the files that differ, and print their names. With ``--check`` only fail if any differs."""
    stale = find_stale()
    if "--check" in arguments:
        sys.stderr.writelines(f"{name} of tidemill init is not the repository's: make project\n" for name in stale)
        return 1 if stale else 0
    wanted = build_files()
    for name in stale:
        path = FOLDER / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
        print(path.relative_to(ROOT).as_posix())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
