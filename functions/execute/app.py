"""The handler of the function `execute`. It is in the layer, so that code and package of a release change at once."""

from tidemill.handlers.execute import lambda_handler

__all__ = ["lambda_handler"]
