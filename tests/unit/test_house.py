"""The check of the house rules finds each fault it is for, and nothing in code that keeps them."""

import pytest

from tools.house import MAX_LINES, count_rows, find_faults, find_unknown_names, is_bare_participle

PATH = "layers/core/tidemill/example.py"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("def _held(task): ...\n", "1: the function _held is a bare participle; name it with a verb and an object"),
        ("for one in tasks: ...\n", "1: the variable one is a pronoun; name it with the noun of the element"),
        ("def count(others): ...\n", "1: the variable others is a pronoun; name it with the noun of the element"),
        ('"""What a claim is."""\n', "1: a docstring begins with 'What'; begin with a verb or a noun"),
        ("class SeatTaker: ...\n", "1: the word 'seat' is banned"),
        ("take_seat()\n", "1: the word 'seat' is banned"),
        (
            '"""Claims.\n\nSomebody waits.\n"""\n',
            "3: 'somebody' is banned; use the word of DESIGN's vocabulary, or a noun",
        ),
        ("x = 1  # whoever it is\n", "1: 'whoever' is banned; use the word of DESIGN's vocabulary, or a noun"),
        ("x = 1\n" * (MAX_LINES + 1), "401: the module has more than 400 lines; split it where the idea changes"),
    ],
)
def test_a_fault_is_found(code: str, fault: str) -> None:
    assert list(find_faults(PATH, code)) == [fault]


@pytest.mark.parametrize(
    "code",
    [
        '"""Claim due tasks."""\n',
        "def claim_tasks(tasks): ...\n",
        "def is_held(task): ...\n",
        "for task in tasks: ...\n",
        "value = pair.one\n",
        "x = 1\n" * MAX_LINES,
    ],
)
def test_code_that_keeps_the_rules_has_no_fault(code: str) -> None:
    assert list(find_faults(PATH, code)) == []


def test_texts_are_read_for_words_only() -> None:
    text = "one\nAn executor knocks.\n"

    assert list(find_faults("README.md", text)) == [
        "2: 'knocks' is banned; use the word of DESIGN's vocabulary, or a noun"
    ]


@pytest.mark.parametrize(
    ("name", "is_bare"),
    [("_told", True), ("stored", True), ("need", False), ("read", False), ("leased_tasks", False), ("encode", False)],
)
def test_a_bare_participle_is_a_single_word(name: str, *, is_bare: bool) -> None:
    assert is_bare_participle(name) is is_bare


def test_rows_of_the_import_contract_are_counted() -> None:
    rows = '[[tool.importlinter.contracts]]\nlayers = ["a", "b : c"]\n[[tool.importlinter.contracts]]\nname = "d"\n'

    assert count_rows(rows) == 2


def test_a_name_that_a_docstring_quotes_is_defined_somewhere() -> None:
    modules = {
        "a.py": '"""Claim as `find_due` finds; see `os.path`, `Task.id` and ``status``. `gone` was once."""\n',
        "b.py": "def find_due(): ...\n\n\nclass Task:\n    id: int\n",
    }

    assert list(find_unknown_names(modules)) == ["a.py:1: the docstring quotes `gone`, which nothing defines"]
