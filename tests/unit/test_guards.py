"""Guards are found as they stand in the code, and one that is broken is gone with its comma."""

from __future__ import annotations

import ast
from pathlib import Path

from tools.guards import PACKAGE, ROUNDS, break_guard, find_guards, find_tests

SOURCE = """
WHERE = {"_id": 1, "lease.token": token, **others, "status": ("processing" if x else y)}
EMPTY = {}
NESTED = {
    "$set": {"status": "done"},  # a comment
}
"""


def test_each_entry_of_each_dictionary_is_one(tmp_path: Path) -> None:
    folder = tmp_path / PACKAGE / "store"
    folder.mkdir(parents=True)
    (folder / "some.py").write_text(SOURCE)

    guards = list(find_guards(tmp_path))

    texts = {guard.text.partition(":")[0] for guard in guards}
    assert texts == {'"_id"', '"lease.token"', '"status"', '"$set"'}
    broken = [break_guard(SOURCE, guard) for guard in guards]
    assert len({ast.dump(ast.parse(text)) for text in [SOURCE, *broken]}) == len(guards) + 1
    assert 'WHERE = {"_id": 1, **others' in broken[1]


def test_the_tests_of_a_guard_are_those_that_reach_its_function(tmp_path: Path) -> None:
    folder = tmp_path / PACKAGE / "store"
    folder.mkdir(parents=True)
    (folder / "some.py").write_text(
        'ALL = {"a": 1}\n\ndef find():\n    key = 1\n    return {"b": key}\n\ndef other(): ...\n'
    )
    reach = {PACKAGE / "store/some.py": {1: ["import"], 4: ["tests/b", "tests/a"], 5: ["tests/a"], 7: ["tests/other"]}}

    outside, inside = find_guards(tmp_path)

    assert find_tests(outside, reach) == list(ROUNDS[0])
    assert find_tests(inside, reach) == ["tests/a", "tests/b"]
