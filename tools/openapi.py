"""The OpenAPI document with the task functions of this repository: for `make openapi` and for the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from aws_lambda_powertools.event_handler import APIGatewayRestResolver

from tasks.deliver_webhook import Webhook
from tidemill.dev import openapi

PATH: Final = Path("build", "openapi.json")

_WEBHOOK: Final = {
    "name": "deliver_webhook",
    "payload": {"url": "https://example.com/hook", "body": {"order": "order-7"}},
}


def document(app: APIGatewayRestResolver) -> openapi.Document:
    """Return the document of *app*, with the payload of `deliver_webhook`."""
    webhook = Webhook.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**webhook.pop("$defs", {}), "DeliverWebhookPayload": webhook}
    return openapi.document(app, task=_WEBHOOK, notes=_describe_webhook(webhook), schemas=schemas)


def _describe_webhook(schema: dict[str, Any]) -> str:
    """Return the payload of `deliver_webhook`, from its *schema*."""
    lines = [
        f"* `{name}`{' (required)' if name in schema['required'] else ''}: {' '.join(field['description'].split())}"
        for name, field in schema["properties"].items()
    ]
    return "\n".join(
        [
            "",
            "### The task functions of this repository",
            "",
            "`noop` does nothing. `deliver_webhook` sends an HTTP POST; its payload is:",
            "",
            *lines,
            "",
            "Its limits: schema DeliverWebhookPayload.",
            "",
        ]
    )


def main() -> int:
    """Write the document below the working directory, and print where."""
    from tidemill.handlers import enqueue  # noqa: PLC0415 - it reads the environment when it is imported

    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(document(enqueue.app), indent=2) + "\n", encoding="utf-8")
    print(PATH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
