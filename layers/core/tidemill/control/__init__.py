"""What executors and operators declare beside the tasks: types, queues and their options, and what is held of both."""

from tidemill.control.directory import CACHE_SEC, DEFAULT_QUEUE, Directory, Known
from tidemill.control.holds import Holder, hold, let_go
from tidemill.control.queues import OptionsReader, change_queue, declare_queue, listed_queues, options_of
from tidemill.control.seats import Seats
from tidemill.control.standing import Held, Standing, standing
from tidemill.control.types import declare_types, policy_of, type_names
from tidemill.control.workers import Presence, be_gone, be_present

__all__ = [
    "CACHE_SEC",
    "DEFAULT_QUEUE",
    "Directory",
    "Held",
    "Holder",
    "Known",
    "OptionsReader",
    "Presence",
    "Seats",
    "Standing",
    "be_gone",
    "be_present",
    "change_queue",
    "declare_queue",
    "declare_types",
    "hold",
    "let_go",
    "listed_queues",
    "options_of",
    "policy_of",
    "standing",
    "type_names",
]
