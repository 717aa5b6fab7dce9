"""Write the async twins of the functions that a client needs: ``tidemill/asynchronous/``, from the sync sources.

The sync source is the only one that people edit. This program reads it as a syntax tree, and makes a function async if
it calls the driver, or another async function. It puts ``await`` before each of these calls and renames classes.

``make twins`` writes them. ``python -m tools.async_twins --check`` prints the names of those that differ.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CORE: Final = ROOT / "layers/core"
PACKAGE: Final = "tidemill.asynchronous"

TWINS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "store": {
        "tidemill.store.connection": (
            "Tasks", "PrefixedDatabase", "with_prefix", "with_majority", "with_lenient_decoding", "open_tasks",
            "read_by_name", "run_server_command", "majority_read",
        ),
        "tidemill.store.writes": (
            "find_and_modify", "insert_task", "insert_once", "insert_all", "insert_in_order", "find_key_holders",
            "has_transactions", "run_in_transaction", "_insert", "_insert_and_read", "_upsert", "_kill_session",
            "_read_server_types",
        ),
    },
    "lookups": {
        "tidemill.store.tasks": ("get", "is_unfinished", "cancel", "_cancel_plainly"),
        "tidemill.dead_letters.queries": ("find_latest",),
        "tidemill.store.mark": ("require_mark", "refuse_foreign", "_read_first_documents"),
        "tidemill.clock": ("Clock", "ServerClock"),
        "tidemill.control.task_types": ("Directory", "PayloadSchemas"),
    },
    "enqueue": {
        "tidemill.enqueue.inserts": (
            "store_task", "store_tasks", "find_by_keys", "_store_batch", "_store_in_transaction", "_store_in_order",
            "_plan_batch",
        ),
        "tidemill.enqueue.enqueue": ("EnqueueService",),
    },
    "client": {
        "tidemill.client_requests": ("Options",),
        "tidemill.handles": ("Handle",),
        "tidemill.client": ("Queue",),
    },
}  # fmt: skip
"""Names of each twin, by the module that has them."""

DOCSTRINGS: Final = {
    "store": "Connections of an `AsyncQueue`, its inserts and its transactions.",
    "lookups": "Single tasks of an `AsyncQueue`, the mark of its database, its clock and the registered names.",
    "enqueue": "The way in of an `AsyncQueue`: checks of new tasks, and their storage.",
    "client": "`AsyncQueue` and `AsyncHandle`, the public API for event loops.",
}
LEFT_OUT: Final = frozenset({"Queue.explain", "Queue.retry_now"})
"""Methods that only the sync class has."""

RENAMED: Final = {
    name: f"Async{name}"
    for name in (
        "Clock", "ClientSession", "Collection", "Database", "Directory", "EnqueueService", "Handle", "Options",
        "PayloadSchemas", "PrefixedDatabase", "Queue", "ServerClock", "Tasks",
    )
}  # fmt: skip
DRIVER_MODULES: Final = ("pymongo.client_session", "pymongo.collection", "pymongo.database")
DRIVER_METHODS: Final = frozenset(
    {"aggregate", "command", "find_one", "find_one_and_update", "insert_many", "insert_one", "to_list", "update_one"}
    | {"with_transaction"}
)
CONTEXTS: Final = frozenset({"majority_read", "start_session"})
"""Context managers that are entered with ``async with``."""

FIELDS: Final = {
    "_clock": "Clock",
    "_directory": "Directory",
    "_queue": "Queue",
    "_schemas": "PayloadSchemas",
    "_service": "EnqueueService",
}
"""Fields of the classes, and the classes of the objects in them."""

PHRASES: Final = (
    (
        "Cheap to make; safe to share between threads.",
        "Cheap to make. It belongs to one event loop: that of its client.",
    ),
    ("must be a ClientSession", "must be an AsyncClientSession"),
    (
        "another MongoClient than the database of the Queue",
        "another AsyncMongoClient than the database of the AsyncQueue",
    ),
    ("with session.start_transaction() or session", "with await session.start_transaction() or session"),
    ("Return a `AsyncHandle`", "Return an `AsyncHandle`"),
    ("Callable[[AsyncClientSession], _T]", "Callable[[AsyncClientSession], Coroutine[Any, Any, _T]]"),
    ("@contextmanager", "@asynccontextmanager"),
    ("Iterator[tuple[Async", "AsyncIterator[tuple[Async"),
)
"""Texts and types of the twins that are not only renamed."""

IMPORTS: Final = """
import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Names that one module gives to a twin, and the statement of each name that the module defines."""

    module: str
    tree: ast.Module
    names: tuple[str, ...]
    defined: Mapping[str, ast.stmt]


def read_source(module: str, names: tuple[str, ...]) -> Source:
    """Return the statements of *module* that define *names*."""
    path = CORE / (module.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return Source(module, tree, names, {name: node for node in tree.body for name in list_defined(node)})


def list_defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines at the top of a module."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
    return []


class Asyncifier(ast.NodeTransformer):
    """Puts ``await`` before calls that reach the driver; *functions* and *methods* are the names known to be async."""

    def __init__(self, functions: set[str], methods: set[str], modules: set[str]) -> None:
        self._functions, self._methods, self._modules = functions, methods, modules
        self._class = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._class = node.name
        node.body = [part for part in node.body if f"{node.name}.{getattr(part, 'name', '')}" not in LEFT_OUT]
        self.generic_visit(node)
        self._class = ""
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef | ast.AsyncFunctionDef:
        self.generic_visit(node)
        key = f"{self._class}.{node.name}" if self._class else node.name
        waits = any(isinstance(part, ast.Await | ast.AsyncWith) for part in ast.walk(node))
        waits = waits or any(isinstance(part, ast.comprehension) and part.is_async for part in ast.walk(node))
        names = self._methods if self._class else self._functions
        if waits:
            names.add(key)
        if key not in names:
            return node
        fields: dict[str, Any] = {name: getattr(node, name, None) for name in node._fields}
        return ast.AsyncFunctionDef(**fields)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                node.func.value = ast.Name("asyncio", ast.Load())
                return ast.Await(node)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="Context")) as context, attr="run"):
                function, *arguments = node.args
                work = ast.Call(function, arguments, [])
                create = ast.Attribute(ast.Name("asyncio", ast.Load()), "create_task", ast.Load())
                return ast.Await(ast.Call(create, [work], [ast.keyword("context", context)]))
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self._modules:
                node.func = ast.Name(name, ast.Load())
                return self._wait_if(node, name in self._functions)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._wait_if(node, f"{self._class}.{name}" in self._methods)
            case ast.Attribute(value=ast.Attribute(attr=part), attr=name) if part in FIELDS:
                return self._wait_if(node, f"{FIELDS[part]}.{name}" in self._methods)
            case ast.Attribute(attr=name):
                return self._wait_if(node, name in DRIVER_METHODS)
            case ast.Name(id=name):
                return self._wait_if(node, name in self._functions and name not in CONTEXTS)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_primary = node.attr == "primary" and isinstance(node.value, ast.Attribute) and node.value.attr == "client"
        return ast.Await(node) if is_primary else node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.generic_visit(node)
        if isinstance(node.body, ast.Await):  # the caller awaits what it returns
            node.body = node.body.value
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and getattr(node.iter.func, "attr", "") == "find":
            node.is_async = 1
        return node

    def visit_With(self, node: ast.With) -> ast.With | ast.AsyncWith:
        self.generic_visit(node)
        body = node.body
        outer: ast.With | ast.AsyncWith = node
        for item in reversed(node.items):
            function = getattr(item.context_expr, "func", None)
            name = getattr(function, "attr", None) or getattr(function, "id", None)
            outer = (ast.AsyncWith if name in CONTEXTS else ast.With)(items=[item], body=body)
            body = [outer]
        return outer

    @staticmethod
    def _wait_if(node: ast.Call, waits: bool) -> ast.AST:  # noqa: FBT001 - reads as a condition
        return ast.Await(node) if waits else node


class Renamer(ast.NodeTransformer):
    """Gives classes and types the names of their twins, in docstrings, too; *kept* are names of other things."""

    def __init__(self, kept: set[str]) -> None:
        self._kept = kept

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = node.id if node.id in self._kept else RENAMED.get(node.id, node.id)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.name = RENAMED.get(node.name, node.name)
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            text = re.sub(r"(?<=`)(Queue|Handle)(?=[.`])", r"Async\1", node.value)
            node.value = RENAMED.get(text, text)
        return node


def write_twins() -> dict[Path, str]:
    """Return the text of each twin by its path."""
    functions, methods = set[str](), {"Clock.now"}
    while True:
        # The trees are changed in place, and each round knows more functions that are async.
        sources = {twin: [read_source(*source) for source in modules.items()] for twin, modules in TWINS.items()}
        size = len(functions) + len(methods)
        parts = {twin: list(_transform(sources[twin], functions, methods)) for twin in TWINS}
        if len(functions) + len(methods) == size:
            break
    homes = {name: twin for twin, found in sources.items() for source in found for name in source.names}
    texts = {}
    for twin, statements in parts.items():
        body = "\n\n\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in statements)
        for phrase, instead in PHRASES:
            body = body.replace(phrase, instead)
        imports = sorted(set(_list_imports(twin, sources[twin], homes)))
        head = f'"""{DOCSTRINGS[twin]}\n\nWritten by tools/async_twins.py from the sync sources; do not edit.\n"""\n\n'
        text = head + "from __future__ import annotations\n" + IMPORTS + "\n".join(imports) + "\n\n" + body + "\n"
        texts[twin] = text
    folder = CORE / PACKAGE.replace(".", "/")
    return {folder / f"{twin}.py": text for twin, text in _format(texts).items()}


def _transform(sources: list[Source], functions: set[str], methods: set[str]) -> Iterator[ast.AST]:
    known = {module for modules in TWINS.values() for module in modules}
    for source in sources:
        imports = [node for node in source.tree.body if isinstance(node, ast.ImportFrom)]
        aliases = [
            (f"{node.module}.{alias.name}", alias.asname or alias.name) for node in imports for alias in node.names
        ]
        modules = {name for path, name in aliases if path in known}
        kept = {name for path, name in aliases if path.startswith("collections.abc.")}
        for name in source.names:
            yield Renamer(kept).visit(Asyncifier(functions, methods, modules).visit(source.defined[name]))


def _list_imports(twin: str, sources: list[Source], homes: Mapping[str, str]) -> Iterator[str]:
    """Yield an import of each name that the sources of *twin* import or define; a linter removes the unused ones."""
    yield from (
        f"from {PACKAGE}.{home} import {RENAMED.get(name, name)}" for name, home in homes.items() if home != twin
    )
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                yield ast.unparse(node)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                for alias in node.names:
                    yield from _import(str(node.module), alias, homes)
        for name in source.defined:
            yield from _import(source.module, ast.alias(name), homes)


def _import(module: str, alias: ast.alias, homes: Mapping[str, str]) -> Iterator[str]:
    name = RENAMED.get(alias.name, alias.name)
    if module in DRIVER_MODULES:
        yield f"from {module.replace('pymongo.', 'pymongo.asynchronous.')} import {name}"
    elif alias.name not in homes or module not in TWINS[homes[alias.name]]:
        yield f"from {module} import {ast.unparse(alias)}"


def _format(texts: Mapping[str, str]) -> dict[str, str]:
    """Return *texts*, by their twins, without unused imports and in the form of the repository."""
    fixes = (["check", "--fix", "--select=F401,F811,I", "--config", f"src = ['{CORE.as_posix()}']"], ["format"])
    with TemporaryDirectory() as folder:
        for twin, text in texts.items():
            (Path(folder) / f"{twin}.py").write_text(text, encoding="utf-8")
        for words in fixes:
            command = [sys.executable, "-m", "ruff", *words, "--quiet", "--isolated", "--line-length=120", folder]
            subprocess.run(command, check=True)
        return {twin: (Path(folder) / f"{twin}.py").read_text(encoding="utf-8") for twin in texts}


def main(arguments: list[str]) -> int:
    """Write the twins, or check them; return the exit status."""
    twins = write_twins()
    differing = [path for path, text in twins.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        sys.stdout.write(
            "".join(f"{path.relative_to(ROOT)}: run `python -m tools.async_twins`\n" for path in differing)
        )
        return 1 if differing else 0
    for path in differing:
        path.write_text(twins[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
