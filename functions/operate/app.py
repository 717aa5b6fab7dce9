"""The handler of the function `operate`. It is in the layer, so that code and package of a release change at once."""

from tidemill.handlers.operate import lambda_handler

__all__ = ["lambda_handler"]
