"""Options behind a source (``set.striped?order=block``) are read whichever plugin is asked first."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import DataError, DataSpec
from demitasse_striped_io.options import Options

ORDERS = (["datasets", "striped_io"], ["striped_io", "datasets"])


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An IDX file of 12 images, each filled with its number."""
    path = tmp_path_factory.mktemp("idx") / "images.idx"
    pixels = np.arange(12, dtype=np.uint8).repeat(4)
    path.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 2]) + pixels.tobytes())
    return path


@pytest.mark.parametrize("plugins", ORDERS)
def test_options_of_striped_sets_and_readers_are_understood(
    images: Path, plugins: list[str], tmp_path: Path
) -> None:
    with demitasse.compose(plugins=plugins) as runtime:
        runtime.program("convert_to_striped", str(images), str(tmp_path / "set"))
        for source in (f"{tmp_path / 'set'}?order=file", f"{images}?reader=one"):
            with closing(runtime.open_source(DataSpec(source))) as opened:
                out = {"data": np.zeros((12, 1, 2, 2), np.float32)}
                opened.stream(0, 12, 12).read(out)
                assert out["data"][:, 0, 1, 1].tolist() == list(range(12))


@pytest.mark.parametrize("plugins", ORDERS)
def test_an_option_that_no_plugin_has_is_told(images: Path, plugins: list[str]) -> None:
    def told(behind: str) -> str:
        with pytest.raises(DataError) as caught:
            runtime.open_source(DataSpec(f"{images}?{behind}"))
        return str(caught.value)

    with demitasse.compose(plugins=plugins) as runtime:
        assert "unknown option of a source 'lables'; did you mean 'labels'? (valid: " in told("lables=x")
        assert "unknown option of a source 'raeder'; did you mean 'reader'? (valid: " in told(
            "raeder=one"
        )
        assert "unknown option of a source 'zzz' (valid: " in told("labels=false&zzz=3")
        assert told("order=file").endswith("; 'order' is an option of striped_io")


def test_the_manifest_names_the_options_of_striped_sets() -> None:
    (manifest,) = (each for each in demitasse.discover() if each.name == "striped_io")
    fields = {each.name for each in dataclasses.fields(Options)} - {"stream", "skip", "transform"}
    assert {*manifest.roles["data_source"]["behind"]} == fields | {"reader", "kind"}
