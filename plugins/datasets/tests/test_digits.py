"""scikit-learn's scanned digits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from demitasse import DataError, DataSpec
from demitasse_datasets import digits
from demitasse_datasets.plugin import data_source


def test_the_digits_are_those_that_scikit_learn_loads(opened, everything):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    source = opened("digits")
    read = everything(source)
    assert source.size == 1797
    assert source.fields["data"].shape == (1, 8, 8)
    assert read["data"].dtype == read["label"].dtype == np.uint8
    np.testing.assert_array_equal(read["data"].reshape(1797, 64), pixels)
    np.testing.assert_array_equal(read["label"], labels)


def test_a_fifth_is_held_out_at_random_and_the_rest_is_for_training(opened, everything):
    train, test = digits.part("train"), digits.part("test")
    assert (len(train), len(test)) == (1438, 359)
    assert sorted([*train, *test]) == list(range(1797))
    whole = everything(opened("digits"))
    for name, rows in (("train", train), ("test", test)):
        read = everything(opened(f"digits:{name}"))
        np.testing.assert_array_equal(read["data"], whole["data"][rows])
        assert np.bincount(read["label"]).min() > len(rows) // 14
    assert opened("digits?split=test").size == opened("test", "digits").size == 359


def test_the_held_out_part_is_the_same_everywhere():
    assert digits.part("test")[:8].tolist() == [3, 4, 16, 17, 19, 21, 22, 45]


def test_scikit_learn_is_not_imported_for_them():
    program = (
        "import sys\n"
        "from demitasse import DataSpec\n"
        "from demitasse_datasets.plugin import data_source\n"
        "assert data_source(spec=DataSpec('digits:train')).size == 1438\n"
        "assert 'sklearn' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_where_its_file_is_elsewhere_scikit_learn_itself_is_asked(monkeypatch):
    there = digits._table()

    class Elsewhere:
        def locate_file(self, path):
            return f"/nowhere/{path}"

    monkeypatch.setattr(digits.importlib.metadata, "distribution", lambda name: Elsewhere())
    np.testing.assert_array_equal(digits._table(), there)


def test_an_unknown_part_is_named_with_the_nearest():
    with pytest.raises(DataError, match="'tets'; did you mean 'test'"):
        data_source(spec=DataSpec("digits:tets"))
