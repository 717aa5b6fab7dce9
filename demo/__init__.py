"""`make demo`: 200 webhooks through the real handlers and a real MongoDB, on this machine, in a minute."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The second layer is no installed package: on Lambda it lies in /opt/python, which is on the path.
sys.path.insert(0, str(ROOT / "layers" / "tasks"))
