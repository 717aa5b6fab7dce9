"""Entry point of ``python -m tidemill.cli``, which equals ``tidemill``."""

import sys

from tidemill.cli import main

sys.exit(main())
