"""What `make build` does around `sam build`: python layers/build_folder.py before FOLDER, and after FOLDER ARCH.

`sam build` empties the folder it builds into, whatever that holds; and the template that it leaves there would deploy
for any processor.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TEMPLATE = "template.yaml"

_RESOURCES = re.compile(r"^Resources:\n(?P<lines>(?:(?: .*)?\n)*)", re.MULTILINE)
_NAME = re.compile(r"^  (\w+):", re.MULTILINE)
_ARCHITECTURE = re.compile(
    r"^(  Architecture:\n(?:    .*\n)*?)    Default: .*\n    AllowedValues:\n(?:    - .*\n)+", re.MULTILINE
)


def refusal(folder: Path, template: Path) -> str | None:
    """Return why a folder is not built into, in a sentence: it holds what no build of *template* made; or ``None``."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        return f"BUILD={folder} is no folder"
    made = {TEMPLATE} | _built(template) | _built(folder / TEMPLATE)
    others = sorted(path.name for path in folder.iterdir() if path.name not in made)
    return f"BUILD={folder} holds {others[0]}, which no build made, and building would remove it" if others else None


def for_one(template: str, arch: str) -> str:
    """Return a built *template* that deploys for *arch* and nothing else: another answer is refused, not deployed.

    Raises:
        ValueError: There is no such choice in it.
    """
    chosen, found = _ARCHITECTURE.subn(rf"\1    Default: {arch}\n    AllowedValues:\n    - {arch}\n", template)
    if found != 1:
        raise ValueError("the template has no parameter Architecture with a default and allowed values")
    return chosen


def main(arguments: list[str]) -> int:
    """Refuse a folder, with exit code 1; or settle what the template in it deploys for."""
    match arguments:
        case ["before", folder]:
            refused = refusal(Path(folder), Path(TEMPLATE))
            sys.stderr.write(f"tidemill: {refused}\n" if refused else "")
            return 1 if refused else 0
        case ["after", folder, arch]:
            path = Path(folder) / TEMPLATE
            path.write_text(for_one(path.read_text(encoding="utf-8"), arch), encoding="utf-8")
            return 0
    sys.stderr.write("usage: python layers/build_folder.py before FOLDER | after FOLDER ARCH\n")
    return 2


def _built(template: Path) -> set[str]:
    """Return the names of what *template* has: a build makes a folder for some of them, and nothing else."""
    text = template.read_text(encoding="utf-8") if template.is_file() else ""
    resources = _RESOURCES.search(text)
    return set(_NAME.findall(resources["lines"])) if resources else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
