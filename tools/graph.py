"""Drawing of the functions, their triggers and their permissions, from the translated template.

``python -m tools.graph`` prints it, `make graph` writes it into ``docs/operate/resources.md``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from tests.template.translating import deployed, written
from tests.template.wiring import FUNCTIONS, HAND, HTTP, Edge, Template, edges, functions, named
from tools.pages import RESOURCES, replace_section

COMMAND: Final = "make graph"
_PEOPLE: Final = {HTTP: "HTTP, with an API key", HAND: "by hand"}
_SHAPES: Final = {"AWS::S3::Bucket": '[("{}")]', "AWS::SQS::Queue": '[["{}"]]'}


def graph(template: Template) -> str:
    """Return the drawing, as a fenced block of Mermaid."""
    drawn = edges(template)
    lines = [
        "flowchart LR",
        *(f"    {line}" for line in _starts(template, drawn)),
        f"    subgraph {FUNCTIONS} [Functions]",
        *(f"        {line}" for line in _functions(template)),
        "    end",
        *(f"    {line}" for line in _things(template, drawn)),
        *(f"    {_arrow(edge)}" for edge in drawn),
    ]
    return "\n".join(["```mermaid", *lines, "```"])


def _starts(template: Template, drawn: Sequence[Edge]) -> Iterator[str]:
    schedules = named(template, "AWS::Scheduler::Schedule")
    for name in dict.fromkeys(edge.source for edge in drawn):
        if name in _PEOPLE:
            yield f'{name}(["{_PEOPLE[name]}"])'
        elif name in schedules:
            yield f'{name}(["{_value(template, schedules[name]["ScheduleExpression"])}"])'


def _functions(template: Template) -> Iterator[str]:
    for name, function in functions(template).items():
        yield f'{name}["{name}<br/>{function["MemorySize"]} MB, {_value(template, function["Timeout"])} s"]'


def _things(template: Template, drawn: Sequence[Edge]) -> Iterator[str]:
    for name in sorted({edge.target for edge in drawn} - functions(template).keys()):
        kind = template["Resources"].get(name, {}).get("Type")
        yield name + _SHAPES.get(kind, '["{}"]').format(name)


def _arrow(edge: Edge) -> str:
    words = [edge.label, f"if {edge.condition}" if edge.condition else ""]
    label = "<br/>".join(word for word in words if word)
    line = "-.->" if edge.is_exceptional else "-->"
    return f'{edge.source} {line}|"{label}"| {edge.target}' if label else f"{edge.source} {line} {edge.target}"


def _value(template: Template, value: object) -> str:
    """Return *value*, or of a parameter its default."""
    return f"{template['Parameters'][value['Ref']]['Default'] if isinstance(value, dict) else value}"


def main(arguments: Sequence[str]) -> int:
    """Print the drawing, or with ``--write`` write it into its page."""
    logging.getLogger("samtranslator").addHandler(logging.NullHandler())  # it tells of features of its own
    drawing = graph(deployed(written()))
    if "--write" in arguments:
        page = replace_section(RESOURCES.read_text(encoding="utf-8"), drawing, command=COMMAND)
        RESOURCES.write_text(page, encoding="utf-8")
    else:
        print(drawing)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
