"""Descriptions of known machines, which ``--hw NAME`` reads, and the command that lists them."""
