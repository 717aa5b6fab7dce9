"""Every link, anchor, file, command and block of the documentation is one that exists."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from tidemill.cli import main
from tools.pages import DOCS, ROOT, find_blocks, list_pages, read_page

MAX_README_LINES = 200
MAX_WORDS_OF_A_SENTENCE = 25
PAGES = [page.relative_to(ROOT).as_posix() for page in list_pages()]
each_page = pytest.mark.parametrize("page", PAGES)

LANGUAGES = {"", "console", "hcl", "js", "json", "mermaid", "python", "text", "yaml"}
"""Marks of blocks. A block without a mark is for a shell; ``console`` has output, too; ``text`` is no code."""
OTHER_PROGRAMS = {".", "aws", "cd", "curl", "export", "git", "pip", "python", "python3", "sam", "terraform", "cdk"}
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def remove_blocks(text: str) -> str:
    return FENCED.sub("", text)


def list_anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", remove_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def list_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of the blocks for a shell, and of the command lines with a ``$``."""
    for _, language, block in FENCED.findall(text):
        lines = re.sub(r"\\\n", " ", block).splitlines()
        if language == "":
            command = ""
            for line in lines:
                command += line + "\n"
                try:
                    words = shlex.split(command, comments=True)
                except ValueError:  # a quote is open
                    continue
                command = ""
                yield from ([words] if words else [])
        elif language == "console":
            yield from (shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ "))


def list_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs, list items and cells of tables, without blocks and what commands write."""
    text = re.sub(r"<!-- begin: .*?<!-- end: .*? -->", "", remove_blocks(text), flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n *(?=[-#|]|\d\. )", re.sub(r"\]\([^)]*\)", "]", text)):
        for cell in part.split("|"):
            yield from re.split(r"(?<=[.:;!?])\s+(?=[A-Z`*\[])", " ".join(cell.split()))


def test_the_readme_is_short() -> None:
    assert read_page("README.md").count("\n") <= MAX_README_LINES


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "README.md"
    links = re.findall(r"\]\(([^)#:]+)\)", index.read_text(encoding="utf-8"))

    assert {(DOCS / link).resolve() for link in links} >= {*DOCS.rglob("*.md")} - {index}


@each_page
def test_every_link_and_anchor_leads_somewhere(page: str) -> None:
    text = remove_blocks(read_page(page))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in list_anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)

    assert broken == []


@each_page
def test_no_sentence_is_long(page: str) -> None:
    words = {sentence: len(sentence.split()) for sentence in list_sentences(read_page(page))}

    assert [sentence for sentence, count in words.items() if count > MAX_WORDS_OF_A_SENTENCE] == []


@each_page
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`((?:tests|layers|functions|events|demo|docs|tools)/[\w/.]+)`", read_page(page))

    assert [path for path in named if not (ROOT / path).exists() and not path.startswith(NEW_FILES)] == []


NEW_FILES = ("layers/tasks/tasks/greet.py", "layers/tasks/tasks/invoices.py", "tests/test_greet.py")
"""Files that a reader makes."""


@each_page
def test_every_block_has_a_known_language(page: str) -> None:
    text = read_page(page)
    blocks = FENCED.findall(text)

    assert 2 * len(blocks) == len(re.findall(r"^ *```", text, re.MULTILINE))
    assert {language for _, language, _ in blocks} <= LANGUAGES


@each_page
def test_every_block_of_json_can_be_read(page: str) -> None:
    for block in find_blocks(read_page(page), "json"):
        json.loads(block)


@each_page
def test_every_block_of_python_compiles(page: str) -> None:
    for block in find_blocks(read_page(page), "python"):
        compile(block, page, "exec", dont_inherit=True)


@pytest.mark.parametrize(
    ("page", "command"), [("docs/operate/commands.md", "queue_status"), ("docs/guides/dead-letters.md", "dlq_ls")]
)
def test_the_tables_shown_have_the_columns_of_the_command(page: str, command: str) -> None:
    before, _, _ = read_page(f"tests/golden/files/command_line/{command}.txt").partition("\n---")
    columns = " ".join(before.splitlines()[-1].split()).partition(" <span>")[0]

    lines = [" ".join(line.split()) for block in find_blocks(read_page(page), "console") for line in block.splitlines()]
    assert [line for line in lines if line.startswith(columns)]


@each_page
def test_every_command_is_one_there_is(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    makefile = read_page("Makefile")
    for words in list_commands(read_page(page)):
        rest = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        while "&&" in rest:
            rest = rest[rest.index("&&") + 1 :]
        match rest:
            case ["make", target, *_]:
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
            case ["tidemill", *arguments]:
                check_arguments(arguments, capsys)
            case [program, *_]:
                assert program in OTHER_PROGRAMS, words


def check_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the help of the command names each option that is used."""
    options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    command = [word for word in arguments if re.fullmatch("[a-z][a-z-]+", word) and word not in VALUES]

    assert main([*command, "--help"]) == 0, arguments
    shown = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    assert options <= shown, arguments


VALUES = {"eu", "orders", "retries_first"}
"""Words of commands that name no command."""


@pytest.mark.parametrize("name", ["retry-priority", "starvation"])
def test_a_simulation_prints_the_figures_of_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    [lines] = [
        block.splitlines()[1:]
        for block in find_blocks(read_page("docs/guides/queues.md"), "console")
        if block.startswith(f"$ tidemill simulate {name}\n")
    ]

    assert main(["simulate", name]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != "..." and line not in printed] == []


def test_the_figures_of_the_readme_are_those_that_were_measured() -> None:
    _, _, table = read_page("README.md").partition("\n## Measured\n")
    figures = re.findall(r"(?<![\w.,])\$?\d[\d.,]*\d", table.partition("\nTimes are of ")[0])
    measured = "".join(read_page(f"docs/{page}") for page in ("measured/benchmarks.md", "measured/chaos.md"))
    measured += read_page("docs/operate/capacity.md")

    assert len(figures) >= 6
    assert [figure for figure in figures if figure.strip("$") not in measured] == [], "take them from docs/measured"


def test_anchors_are_made_of_headings_outside_of_blocks() -> None:
    assert list_anchors("# A `b` and c: d\n\n```\n# not this\n```\n") == {"a-b-and-c-d"}
