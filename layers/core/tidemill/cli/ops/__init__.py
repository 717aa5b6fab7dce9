"""``tidemill ops``: what an operator asks and changes, on a MongoDB URI or through the operate function."""

from __future__ import annotations

from tidemill.cli.ops import queues, stats, tasks
from tidemill.cli.ops.asking import add_function_to
from tidemill.cli.tables import Commands


def add_to(commands: Commands) -> None:
    """Add ``ops`` with all that is below it."""
    ops = commands.add_parser("ops", help="look after queues and tasks", allow_abbrev=False)
    add_function_to(ops, default=None)
    topics = ops.add_subparsers(required=True, metavar="TOPIC")
    queues.add_to(topics)
    tasks.add_to(topics)
    stats.add_to(topics)
