"""``python -m demitasse_cli``: the command, for a Python whose script folder is not on the path."""

import sys

from demitasse_cli.main import main

sys.exit(main())
