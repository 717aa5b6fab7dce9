"""What an operator asks for and changes: requests, carried out on a database, answered in plain JSON documents."""

from tidemill.operations.desk import Desk
from tidemill.operations.operate import OPERATIONS, NoOperationError, operate, read
from tidemill.operations.refusals import Refusal, refusal
from tidemill.operations.requests import Operation

__all__ = ["OPERATIONS", "Desk", "NoOperationError", "Operation", "Refusal", "operate", "read", "refusal"]
