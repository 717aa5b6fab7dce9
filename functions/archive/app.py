"""The handler of the function `archive`. It is in the layer, so that code and package of a release change at once."""

from tidemill.handlers.archive import lambda_handler

__all__ = ["lambda_handler"]
