"""`python -m pytest_gpukern` is `gpukern`."""

import sys

from pytest_gpukern.cli.main import main

sys.exit(main())
