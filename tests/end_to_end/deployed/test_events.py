"""Each sample event does in the deployed function what `events/README.md` says of it."""

from __future__ import annotations

import json
import re

from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import EVENTS, sample

ROW = re.compile(r"^\| `(\w+)\.json` \| (\w+) \|", re.MULTILINE)
STATUS = {"enqueue_invalid": 422, "get_task": 404, "cancel_task": 404, "get_queue": 403}
QUIET = {"ExecuteFunction": {"WEBHOOK_ALLOWED_HOSTS": "nowhere.invalid", "LINGER_SEC": "0"}}


def test_every_sample_event_is_taken(deploy: Deploy) -> None:
    stack = deploy(variables=QUIET).start()
    rows = ROW.findall((EVENTS / "README.md").read_text())
    assert {name for name, _ in rows} == {path.stem for path in EVENTS.glob("*.json")}

    for name, function in rows:
        event = sample(name)
        if "httpMethod" in event:
            told = stack.cloud.http(event)
            assert told["statusCode"] == STATUS.get(name, 202), (name, told)
            assert json.loads(told["body"]), name
        else:
            answer = stack.cloud.invoke(f"{function.title()}Function", event)
            assert answer.error is None, (name, answer.content)
    stack.cloud.calm()
