"""``python -m tailrace``."""

import sys

from tailrace.cli.main import main

sys.exit(main())
