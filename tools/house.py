"""The house rules that a program can check: size of modules, import rows, names and words.

``python -m tools.house`` prints each fault with its place and ends with status 1 if there is any. `make check` runs it.
STYLE calls for more than this; what is checked here is what crept in before.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("layers/core/tidemill/", "layers/tasks/", "functions/")
TEXTS: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "events/README.md", "template.yaml", "docs/")

MAX_ROWS: Final = 12
MAX_LINES: Final = 400
OVERLONG: Final[Mapping[str, int]] = MappingProxyType({})
"""Modules above `MAX_LINES` and their length today. A module may leave this list, or become shorter; never longer."""

BANNED_WORDS: Final = frozenset({
    "anew", "buried", "buries", "bury", "desk", "graft", "grafted", "grafting", "graveyard", "hostage", "hostages",
    "keeper", "knock", "knocked", "knocks", "nobody", "nursery", "seat", "seats", "shun", "shunned", "somebody",
    "stray", "strays", "summon", "summoned", "summoner", "summons", "thereof", "whoever",
})  # fmt: skip
"""Metaphors, and pronouns that stand where a noun is possible. Each is banned in texts and as a part of a name."""

BANNED_PHRASES: Final = (
    "gone on with",
    "goes on with",
    "is told",
    "are told",
    "lets go of",
    "let go of",
    "tells whether",
)
PRONOUNS: Final = frozenset({"item", "one", "ones", "other", "others", "these", "those"})
"""None of these names a variable or a parameter: the noun of the element does."""

FOREIGN_NAMES: Final = frozenset(
    {
        ("layers/core/tidemill/task_functions.py", "cancelled"),  # as a future of asyncio has it
        ("layers/core/tidemill/testing/faults.py", "failed"),  # the three of pymongo.monitoring.CommandListener
        ("layers/core/tidemill/testing/faults.py", "started"),
        ("layers/core/tidemill/testing/faults.py", "succeeded"),
    }
)
"""Functions whose name an interface of others gives."""

FOREIGN_MODULES: Final = sys.stdlib_module_names | {"bson", "pydantic", "pymongo", "tidemill", "pytest"}
"""First parts of quoted names that are not looked up."""

_QUOTED_NAME: Final = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
_IRREGULAR: Final = frozenset({
    "begun", "bought", "bound", "brought", "built", "caught", "chosen", "done", "drawn", "driven", "eaten", "fallen",
    "fed", "felt", "found", "frozen", "given", "gone", "got", "heard", "held", "hidden", "hung", "kept", "known",
    "laid", "led", "left", "lost", "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "sold", "sought",
    "spent", "spoken", "stood", "struck", "stuck", "taken", "taught", "thought", "told", "understood", "worn",
    "written",
})  # fmt: skip
_VERBS: Final = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed"})
_BAD_START: Final = re.compile(r"(What|How|Who|Whoever|Whether)\b")
_WORD: Final = re.compile(r"[A-Za-z]+")
_HUMP: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def find_faults(path: str, text: str) -> Iterator[str]:
    """Yield the faults of one file, as ``line: fault``. *path* is relative to the root of the repository."""
    if path.endswith(".py"):
        yield from _check_length(path, text)
        yield from _check_names(path, ast.parse(text))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                words = (hump.group().lower() for hump in _HUMP.finditer(token.string))
                yield from (f"{token.start[0]}: the word {word!r} is banned" for word in words if word in BANNED_WORDS)
            elif token.type in {tokenize.STRING, tokenize.COMMENT}:
                yield from _check_words(token.string, first_line=token.start[0])
    else:
        yield from _check_words(text, first_line=1)


def find_unknown_names(modules: Mapping[str, str]) -> Iterator[str]:
    """Yield each name of code that a docstring quotes and that nothing in *modules* defines.

    A name of code stands in single backticks. *modules* maps paths to their text.
    """
    known = {name for text in modules.values() for name in _collect_names(ast.parse(text))}
    for path, text in modules.items():
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.STRING or not token.string.lstrip("rf").startswith('"""'):
                continue
            for quoted in _QUOTED_NAME.findall(token.string):
                first, last = quoted.split(".")[0], quoted.split(".")[-1]
                if last not in known and first not in FOREIGN_MODULES:
                    yield f"{path}:{token.start[0]}: the docstring quotes `{quoted}`, which nothing defines"


def _collect_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name) | ast.alias(name=name) | ast.Attribute(attr=name):
                yield name.split(".")[-1]
            case _:
                pass


def count_rows(pyproject: str) -> int:
    """Return how many rows the import contract of *pyproject* has."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    return max(len(contract.get("layers", ())) for contract in contracts)


def is_bare_participle(name: str) -> bool:
    """Return whether a function of this *name* says neither a verb nor an object: ``_held``, ``told``."""
    word = name.strip("_")
    if "_" in word:
        return False
    return word in _IRREGULAR or (word.endswith("ed") and word not in _VERBS)


def _check_length(path: str, text: str) -> Iterator[str]:
    lines, limit = text.count("\n"), OVERLONG.get(path, MAX_LINES)
    if lines > limit:
        yield f"{lines}: the module has more than {limit} lines; split it where the idea changes"
    elif path in OVERLONG and lines <= MAX_LINES:
        yield f"{lines}: the module is short enough; take it off the list OVERLONG"
    elif path in OVERLONG and lines < limit:
        yield f"{lines}: the module is shorter than OVERLONG says; write {lines} there"


def _check_names(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if (
                is_bare_participle(name) and (path, name) not in FOREIGN_NAMES
            ):
                yield f"{node.lineno}: the function {name} is a bare participle; name it with a verb and an object"
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if name in PRONOUNS:
                yield f"{node.lineno}: the variable {name} is a pronoun; name it with the noun of the element"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node) or ""
            if _BAD_START.match(docstring):
                line, word = getattr(node, "lineno", 1), docstring.split()[0]
                yield f"{line}: a docstring begins with {word!r}; begin with a verb or a noun"


def _check_words(text: str, *, first_line: int) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), first_line):
        lowered = line.lower()
        words = [found.group() for found in _WORD.finditer(lowered) if found.group() in BANNED_WORDS]
        for word in [*words, *(phrase for phrase in BANNED_PHRASES if phrase in lowered)]:
            yield f"{number}: {word!r} is banned; use the word of DESIGN's vocabulary, or a noun"


def main() -> int:
    """Check the repository; print each fault, and return the exit status."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    faults = []
    modules: dict[str, str] = {}
    for path in tracked.splitlines():
        is_product = path.startswith(PRODUCT) and path.endswith(".py")
        if (is_product or path.startswith(TEXTS)) and (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8")
            faults += [f"{path}:{fault}" for fault in find_faults(path, text)]
            modules |= {path: text} if is_product else {}
    faults += find_unknown_names(modules)
    rows = count_rows((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if rows > MAX_ROWS:
        faults.append(f"pyproject.toml: {rows} rows of imports; at most {MAX_ROWS} are allowed")
    faults += [
        f"tools/house.py: OVERLONG lists {path}, which is no file" for path in OVERLONG if not (ROOT / path).is_file()
    ]
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
