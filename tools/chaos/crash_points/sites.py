"""Where Tidemill writes: read from its code, so that a place nobody lets it crash at is known."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import tidemill

WRITES: Final = frozenset({
    "insert_one", "insert_many", "update_one", "update_many", "replace_one", "bulk_write", "find_one_and_update",
    "delete_one", "delete_many", "with_transaction", "create_index", "create_indexes", "drop_index", "command",
    "put_object", "invoke",
})  # fmt: skip
"""Methods of the driver and of AWS's clients."""

SHARED: Final = frozenset({"write_each", "find_and_modify", "update_semaphore"})
"""Functions of Tidemill's that write for others: who calls them writes, too."""

ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType({
    "aws/lambda_functions.py:invoke_function": "the command line asks the operate function, which is crashed itself",
    "cli/commands.py:run_command": "runs a command of click; what that calls is crashed itself",
    "control/fleet.py:ExecutorSlots.cancel_acquire": "after an acquire without an answer; else the slot ends by itself",
    "store/connection.py:run_server_command": "asks the server something, and changes nothing",
    "store/writes.py:_kill_session": "after a transaction that failed; one that died ends by itself",
})  # fmt: skip
"""What is no point of a crash, or is one elsewhere, and why."""

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_LEFT_OUT: Final = ("testing", "simulation", "asynchronous")
"""Not shipped; or written from sources that are here."""


@cache
def writing() -> frozenset[str]:
    """Return the functions that write, as ``store/claims.py:take``; those of ELSEWHERE, too."""
    root = Path(tidemill.__file__).parent
    return frozenset(
        f"{path.relative_to(root)}:{name}"
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in _LEFT_OUT
        for name, function in _functions(ast.parse(path.read_text()), ())
        if _writes(function)
    )


def unmet(callers: Collection[str]) -> list[str]:
    """Return the functions that write and are none of *callers*, nor crashed elsewhere."""
    return sorted(writing() - set(callers) - ELSEWHERE.keys())


def _functions(node: ast.AST, within: tuple[str, ...]) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield ".".join([*within, name]), child
                yield from _functions(child, (*within, name, "<locals>"))
            case ast.ClassDef(name=name):
                yield from _functions(child, (*within, name))
            case _:
                yield from _functions(child, within)


def _writes(function: _Function) -> bool:
    return any(_is_write(node) for statement in function.body for node in _own(statement))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield *node* and what is in it, but for functions of their own."""
    if isinstance(node, _Function):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _own(child)


def _is_write(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in WRITES
        case ast.Call(func=ast.Name(id=name)):
            return name in SHARED
        case _:
            return False
