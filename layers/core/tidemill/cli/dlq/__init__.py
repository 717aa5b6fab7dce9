"""``tidemill dlq``: dead letters, looked at and acted on, on a MongoDB URI or through the operate function."""

from __future__ import annotations

from tidemill.cli.dlq import exporting, looking, purging, redriving
from tidemill.cli.ops.asking import add_function_to
from tidemill.cli.tables import Commands


def add_to(commands: Commands) -> None:
    """Add ``dlq`` with all that is below it."""
    dlq = commands.add_parser("dlq", help="look at dead letters, redrive or purge them", allow_abbrev=False)
    add_function_to(dlq, default=None)
    actions = dlq.add_subparsers(required=True, metavar="ACTION")
    looking.add_to(actions)
    redriving.add_to(actions)
    purging.add_to(actions)
    exporting.add_to(actions)
