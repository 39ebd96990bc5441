"""A small machine with several memory domains, booted under qemu's software emulation.

``python -m numalab --domains 4 -- python script.py`` runs a program in it, as does
``Lab(...).run([...])`` from Python. The host's files are visible, read-only, so the same environment
runs inside.
"""

from numalab.errors import LabError as LabError
from numalab.errors import LabUnavailableError as LabUnavailableError
from numalab.guest import Outcome as Outcome
from numalab.lab import Lab as Lab
from numalab.lab import missing as missing
