"""A test kit that checks that plugins do what their roles promise, for plugin authors' own tests and for
``demitasse check``. Each check raises BrokenPromiseError, an AssertionError whose message says what was
found."""

from demitasse_conformance.collectives import check_collective as check_collective
from demitasse_conformance.engines import check_streams as check_streams
from demitasse_conformance.kernels import check_kernels as check_kernels
from demitasse_conformance.layers import check_layer as check_layer
from demitasse_conformance.memory import check_allocator as check_allocator
from demitasse_conformance.promises import BrokenPromiseError as BrokenPromiseError
from demitasse_conformance.samples import (
    check_epochs as check_epochs,
)
from demitasse_conformance.samples import (
    check_shuffling as check_shuffling,
)
from demitasse_conformance.samples import (
    check_source as check_source,
)
from demitasse_conformance.synchronisation import check_sync as check_sync
from demitasse_conformance.training import check_training as check_training
from demitasse_conformance.weights import check_weights as check_weights
