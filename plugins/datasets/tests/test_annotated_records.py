"""AnnotatedDatum compared with protobuf's own writer; damaged and false records are errors."""

from __future__ import annotations

import numpy as np
import pytest
from annotated_files import annotated, message
from hypothesis import given
from hypothesis import strategies as st

from demitasse import DataError
from demitasse_datasets.annotated.record import parse_annotated

GRAY = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
share = st.floats(-2, 2, width=32)
objects = st.lists(
    st.tuples(
        st.integers(-5, 90), st.integers(-(2**31), 2**31 - 1), share, share, share, share, st.booleans()
    ),
    max_size=6,
)


@given(objects)
def test_boxes_are_read_as_protobuf_writes_them(given: list[tuple[float, ...]]) -> None:
    found = parse_annotated(annotated(GRAY, given, encoded=False))
    np.testing.assert_array_equal(found.datum.pixels(), GRAY.transpose(2, 0, 1))
    wanted = [each for label in dict.fromkeys(o[0] for o in given) for each in given if each[0] == label]
    assert found.boxes is not None
    np.testing.assert_array_equal(found.boxes, np.array(wanted, np.float64).reshape(-1, 7))


def test_without_a_type_a_record_has_the_label_of_its_datum_unless_it_is_taken_for_boxes() -> None:
    record = annotated(GRAY, [(2, 0, 0, 0, 1, 1, 0)], encoded=False, kind=None)
    found = parse_annotated(record)
    assert found.boxes is None and found.datum.label == 3
    taken = parse_annotated(record, boxed=True)
    assert taken.boxes is not None and taken.boxes.tolist() == [[2, 0, 0, 0, 1, 1, 0]]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(DataError, match=r"is of type 7 .valid: 0, boxes"):
        parse_annotated(annotated(GRAY, [], kind=7))
    with pytest.raises(DataError, match=r"box 1 .* corners that are not finite: .*nan"):
        parse_annotated(annotated(GRAY, [(1, 0, 0, 0, 1, 1, 0), (1, 1, np.nan, 0, 1, 1, 0)]))
    with pytest.raises(DataError, match="it is not an AnnotatedDatum; demitasse convert_annoset writes"):
        parse_annotated(b"")
    plain = message("Datum")(channels=1, height=3, width=4, data=bytes(12)).SerializeToString()
    with pytest.raises(
        DataError, match=r"it is a Datum without boxes, which Data layers read; .*annoset"
    ):
        parse_annotated(plain)
    with pytest.raises(DataError, match=r"wire type|no end|cut short|AnnotatedDatum"):
        parse_annotated(b"\xff\xd8 is a picture")


@given(st.data())
def test_damage_is_an_error_or_other_boxes(data: st.DataObject) -> None:
    """Never another exception, and no memory allocated for a claimed length."""
    whole = bytearray(annotated(GRAY, [(1, 0, 0.25, 0, 1, 0.5, 1), (9, 4, 0, 0, 1, 1, 0)]))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    try:
        found = parse_annotated(bytes(whole))
    except DataError:
        return
    assert found.boxes is None or found.boxes.shape[1] == 7
