"""Names that no file can have, where somebody gives a file's: too long, with a zero byte, of a user that
is not there. Each is told as a file that is missing, or that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_files import packed, photo

import demitasse
from demitasse import DataError, DataSpec, DemitasseError, PluginError, Runtime, Weights
from demitasse_caffe.mean import read_mean

NAMES = {"long": "a" * 5000, "long part": "a" * 300, "zero": "a\0b"}
NET = """
layer {{ name: "d" type: "{kind}" top: "d" top: "l" {field} {{ source: "{source}" batch_size: 2 }}
  {more} }}
layer {{ name: "fc" type: "InnerProduct" bottom: "d" top: "fc" inner_product_param {{ num_output: 2 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "l" top: "loss" }}
"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with demitasse.compose(plugins=["-tuning"]) as composed:
        yield composed


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(message: str, program: object) -> None:
    with pytest.raises(DemitasseError, match=message) as caught:
        program()  # type: ignore[operator]
    assert not isinstance(caught.value, PluginError)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_read_is_missing(runtime: Runtime, name: str) -> None:
    refused("^no such file: a", lambda: runtime.net(name))
    refused("^no such file: a", lambda: runtime.trainer(name))
    refused("a", lambda: demitasse.compose(hw=name))
    refused("cannot be read", lambda: runtime.program("convert_model", name, "out.prototxt"))
    for program, out in (
        ("compute_image_mean", "o.binaryproto"),
        ("convert_samples", "o"),
        ("convert_to_striped", "s"),
    ):
        refused("no such file", lambda p=program, o=out: runtime.program(p, name, o))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("kind", ["Data", "ImageData", "HDF5Data", "WindowData"])
def test_samples_of_a_net_are_missing(runtime: Runtime, kind: str, name: str) -> None:
    field = {"HDF5Data": "hdf5_data_param"}.get(kind) or f"{kind[:-4].lower()}_data_param".lstrip("_")
    more = "transform_param { crop_size: 2 }" if kind == "WindowData" else ""
    source = name.replace("\0", "\\000")
    Path("net.prototxt").write_text(NET.format(kind=kind, field=field, source=source, more=more))
    refused("^net.prototxt:2: layer 'd' .*no such file", lambda: runtime.net("net.prototxt"))


@pytest.mark.parametrize("kind", ["ImageData", "HDF5Data"])
def test_a_line_of_a_list_is_missing(runtime: Runtime, kind: str) -> None:
    Path("list.txt").write_text(f"{'a' * 5000}{' 1' if kind == 'ImageData' else ''}\n")
    field = {"ImageData": "image_data_param", "HDF5Data": "hdf5_data_param"}[kind]
    Path("net.prototxt").write_text(NET.format(kind=kind, field=field, source="list.txt", more=""))
    refused(r"list.txt:1: .*(cannot be read|no such file)", lambda: runtime.net("net.prototxt"))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_written_cannot_be(runtime: Runtime, name: str) -> None:
    refused(
        "cannot be written|could not be written", lambda: runtime.write(f"{name}.caffemodel", Weights())
    )
    refused(
        "cannot be written|could not be written", lambda: runtime.write(f"{name}.demitasse", Weights())
    )
    Path("net.prototxt").write_text('layer { name: "r" type: "Silence" bottom: "r" }')
    target = f"{name}.binarynet"
    refused("cannot be written", lambda: runtime.program("convert_model", "net.prototxt", target))
    for program in ("compute_image_mean", "convert_samples", "convert_to_striped"):
        refused("cannot be written", lambda p=program: runtime.program(p, "digits:test", name))


def test_a_file_in_place_of_a_folder_is_told_where_weights_are_written(runtime: Runtime) -> None:
    Path("file").touch()
    refused(
        "^file/w.demitasse: cannot be written: ", lambda: runtime.write("file/w.demitasse", Weights())
    )


def test_an_empty_name_is_no_files(runtime: Runtime) -> None:
    refused("cannot be written", lambda: runtime.program("compute_image_mean", "digits:test", ""))


def test_a_home_of_nobody_is_a_name_as_any(runtime: Runtime) -> None:
    with pytest.raises(DataError, match=r"no such file or folder: '~nobody-here/x'"):
        runtime.open_source(demitasse.DataSpec("~nobody-here/x"))


def test_a_list_of_many_names_may_be_longer_than_a_name(runtime: Runtime) -> None:
    """Twenty batches with commas between are 315 letters without a slash."""
    for number in range(20):
        Path(f"data_batch_{number}.bin").write_bytes(bytes([number % 10]) + bytes(3072))
    source = runtime.open_source(
        demitasse.DataSpec(",".join(f"data_batch_{number}.bin" for number in range(20)))
    )
    assert source.size == 20


@pytest.mark.parametrize("kind", ["Data", "ImageData", "HDF5Data", "WindowData"])
def test_a_device_is_not_read_as_samples(runtime: Runtime, kind: str) -> None:
    """It may have no end: a stranger's net would take all memory, or wait at a pipe for ever."""
    field = {"HDF5Data": "hdf5_data_param"}.get(kind) or f"{kind[:-4].lower()}_data_param".lstrip("_")
    more = "transform_param { crop_size: 2 }" if kind == "WindowData" else ""
    Path("net.prototxt").write_text(NET.format(kind=kind, field=field, source="/dev/null", more=more))
    told = "^net.prototxt:2: layer 'd' .*/dev/null is a pipe or a device"
    refused(told, lambda: runtime.net("net.prototxt"))


@pytest.mark.parametrize("suffix", ["binaryproto", "npy"])
def test_a_device_is_no_mean(runtime: Runtime, suffix: str) -> None:
    Path(f"mean.{suffix}").symlink_to("/dev/null")
    Path("list.txt").write_text("a.png 0\n")
    more = f'transform_param {{ mean_file: "mean.{suffix}" }}'
    text = NET.format(kind="ImageData", field="image_data_param", source="list.txt", more=more)
    Path("net.prototxt").write_text(text)
    Path("a.png").write_bytes(packed(photo(4, 4)))
    refused(rf"mean\.{suffix} is a pipe or a device", lambda: runtime.net("net.prototxt").forward())


def test_a_device_among_listed_images_is_not_read(runtime: Runtime) -> None:
    Path("a.png").symlink_to("/dev/null")
    Path("list.txt").write_text("a.png 0\na.png 0\n")
    text = NET.format(kind="ImageData", field="image_data_param", source="list.txt", more="")
    Path("net.prototxt").write_text(text)
    refused(
        r"list.txt:1: a.png: cannot be read: it is a pipe", lambda: runtime.net("net.prototxt").forward()
    )


def test_a_net_does_not_have_all_disks_searched(runtime: Runtime) -> None:
    source = "/*/*/*/*/*/nothing"
    Path("net.prototxt").write_text(NET.format(kind="Data", field="data_param", source=source, more=""))
    refused("at most 2 parts of a path may be patterns", lambda: runtime.net("net.prototxt"))


def test_a_folder_among_listed_images_is_told_as_one(runtime: Runtime) -> None:
    Path("photos").mkdir()
    Path("list.txt").write_text("photos 0\n")
    told = r"list.txt:1: photos: cannot be read: Is a directory"
    refused(told, lambda: runtime.open_source(DataSpec("list.txt", "images")))


def test_a_pipe_that_a_shell_made_for_a_list_is_told_as_one(runtime: Runtime) -> None:
    """As of convert_imageset root/ <(shuf list.txt) out."""
    os.mkfifo("63")
    refused("^63 is a pipe or a device", lambda: runtime.program("convert_samples", "63", "out"))


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder into which nobody may look, root neither."""
    folder, me = Path("closed"), os.geteuid()
    folder.mkdir()
    (folder / "list.txt").write_text("a.png 0")
    folder.chmod(0)
    if me == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(me)
    folder.chmod(0o700)


@pytest.mark.parametrize("kind", ["images", "hdf5", "windows", "cifar10"])
def test_a_folder_that_nobody_may_look_into_is_told_as_one(
    runtime: Runtime, closed: Path, kind: str
) -> None:
    refused("Permission denied", lambda: runtime.open_source(DataSpec(str(closed / "list.txt"), kind)))


@pytest.mark.parametrize("name", ["mean.npy", "mean.binaryproto"])
def test_nor_is_a_mean_looked_for_in_it(closed: Path, name: str) -> None:
    refused(rf"closed/{name}: cannot be read: Permission denied", lambda: read_mean(closed / name))
