"""Descriptions of known machines, which ``--hw NAME`` finds, and the command that lists them."""
