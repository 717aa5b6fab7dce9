"""Entry point of ``python -m tidemill``, which equals the command ``tidemill``."""

import sys

from tidemill.cli import main

sys.exit(main())
