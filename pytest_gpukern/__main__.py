"""`python -m pytest_gpukern` is `gpukern`."""

import sys

from pytest_gpukern.cli import main

sys.exit(main())
