"""Words that Caffe's layers need beyond the core's vocabulary, in families; any plugin may compute them."""

from __future__ import annotations

from demitasse.operations import Operation

OPERATIONS: tuple[Operation, ...] = ()
"""All of them, in the order of their families."""
