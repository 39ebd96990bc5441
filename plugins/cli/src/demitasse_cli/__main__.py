"""``python -m demitasse_cli``: the command for a Python that has no script folder on its path."""

import sys

from demitasse_cli.main import main

sys.exit(main())
