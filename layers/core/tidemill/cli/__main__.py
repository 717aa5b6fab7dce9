"""``python -m tidemill.cli``: the same as ``tidemill``."""

import sys

from tidemill.cli import main

sys.exit(main())
