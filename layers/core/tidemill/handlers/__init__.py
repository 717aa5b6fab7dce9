"""The five functions: each parses its event, calls the core and answers.

They are in the layer, because an update changes a function's code and its layers one after the other.
"""

from tidemill.text import describe_missing_extra

try:
    import aws_lambda_powertools  # noqa: F401 - each handler needs it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(describe_missing_extra(__name__, error.name) or str(error), name=error.name) from None
