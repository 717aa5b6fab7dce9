"""What executors and operators declare beside the tasks: types, queues and their options, and what is held of both."""

from tidemill.control.directory import CACHE_SEC, DEFAULT_QUEUE, Directory, Known
from tidemill.control.holds import Holder, hold, let_go
from tidemill.control.names import known_queues, listed_queues, no_queue
from tidemill.control.options import OPTIONS_SEC, OptionsReader, options_of
from tidemill.control.queues import change_queue, declare_queue
from tidemill.control.seats import Seats
from tidemill.control.service import Service
from tidemill.control.standing import Held, Standing, standing
from tidemill.control.types import declare_types, policy_of, registered_names
from tidemill.control.workers import be_gone, be_present

__all__ = [
    "CACHE_SEC",
    "DEFAULT_QUEUE",
    "OPTIONS_SEC",
    "Directory",
    "Held",
    "Holder",
    "Known",
    "OptionsReader",
    "Seats",
    "Service",
    "Standing",
    "be_gone",
    "be_present",
    "change_queue",
    "declare_queue",
    "declare_types",
    "hold",
    "known_queues",
    "let_go",
    "listed_queues",
    "no_queue",
    "options_of",
    "policy_of",
    "registered_names",
    "standing",
]
