"""``python -m demitasse``: the command line, from whichever package provides it."""

import sys
from importlib.metadata import entry_points

_COMMANDS = [*entry_points(group="console_scripts", name="demitasse")]
if not _COMMANDS:
    sys.exit("demitasse: its command line is not installed; install demitasse-cli")
sys.exit(_COMMANDS[0].load()())
