"""Operations that Caffe's layers need beyond the core's vocabulary, in families.

Any plugin may compute them.
"""

from __future__ import annotations

from demitasse.operations import Operation
from demitasse_caffe.operations import (
    elementwise,
    indexing,
    loss,
    output,
    propagation,
    recurrent,
    reduction,
    regions,
    sequences,
    spatial,
    update,
)

OPERATIONS: tuple[Operation, ...] = (
    *indexing.OPERATIONS,
    *spatial.OPERATIONS,
    *elementwise.OPERATIONS,
    *loss.OPERATIONS,
    *output.OPERATIONS,
    *propagation.OPERATIONS,
    *recurrent.OPERATIONS,
    *reduction.OPERATIONS,
    *regions.OPERATIONS,
    *sequences.OPERATIONS,
    *update.OPERATIONS,
)
"""All operations, in the order of their families."""
