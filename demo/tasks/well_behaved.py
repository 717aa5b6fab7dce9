"""What is there to use: importing it registers it."""

from tasks import deliver_webhook, noop

__all__ = ["deliver_webhook", "noop"]
