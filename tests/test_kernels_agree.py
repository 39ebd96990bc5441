"""The cpu plugin's kernels give what the reference's give, on random requests for every operation
that both serve."""

from __future__ import annotations

import pytest
from agreement import TOLERANCE, Values, check_agreement
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import CASES

from demitasse.operations import VOCABULARY
from demitasse_caffe.operations import OPERATIONS as CAFFE_WORDS
from demitasse_cpu.kernels import FACTORIES
from demitasse_onnx.operations import OPERATIONS as ONNX_WORDS
from demitasse_optical_flow.operations import OPERATIONS as FLOW_WORDS
from demitasse_reference.kernels import KERNELS as REFERENCE_KERNELS
from demitasse_training.across_workers import ACROSS
from demitasse_training.across_workers import OPERATIONS as ACROSS_WORKERS
from demitasse_training.clipping import OPERATIONS as CLIPPED
from demitasse_training.folding import FOLD


def test_every_operation_that_the_cpu_serves_has_a_case() -> None:
    """Fused ones and reorders are compared in the plugin's own tests."""
    known = {*VOCABULARY, *(word.name for word in (*CLIPPED, *ACROSS_WORKERS))}
    assert set(CASES) == set(FACTORIES) & known - {"reorder"}


def test_every_word_that_a_plugin_adds_is_computed_by_the_reference_and_by_the_cpu() -> None:
    """Their cases stand in the tests of the layers that they are for. A view has no kernel; what writes
    a file is computed by the plugin whose format it is, and what workers exchange by the trainer."""
    words = (*CAFFE_WORDS, FOLD, *CLIPPED, *ACROSS_WORKERS, *ONNX_WORDS)
    added = {word.name for word in words if not word.view} - {"write_arrays", ACROSS}
    assert added <= set(REFERENCE_KERNELS), "in the reference"
    assert added <= set(FACTORIES), "on the cpu"
    added |= {word.name for word in FLOW_WORDS}  # whose own kernels test_flow_words.py compares
    fused = {f"{word.name}_{name}" for word in VOCABULARY.values() for name in word.fuses}
    assert set(FACTORIES) <= {*VOCABULARY, *added, *fused}, "what nobody asks for"


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    check_agreement(name, *CASES[name](Values(data.draw, dtype)), dtype, TOLERANCE[dtype])
