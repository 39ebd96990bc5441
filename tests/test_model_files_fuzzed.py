"""Damaged model files are read or refused: no crash, no hang, no error but the family's, no memory for
what a file only claims to hold. Each format is damaged some hundred times, with -m slow ten thousand."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import demitasse
from demitasse import DemitasseError, ModelError, Runtime, Weights

QUICK, WHOLE = 400, 10_000
ROOM = 1 << 30
"""Bytes of address space above what is taken at the start: damaged files have a few kilobytes."""

NET = """
name: "n"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } }
}
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 } include { phase: TEST stage: "s" } }
layer { name: "norm" type: "LRN" bottom: "pool" top: "norm" lrn_param { local_size: 3 alpha: 0.1 } }
"""
OLDER = """
name: "v1" input: "x" input_dim: 1 input_dim: 3 input_dim: 4 input_dim: 4
layers { name: "c" type: CONVOLUTION bottom: "x" top: "c" blobs_lr: 1 blobs_lr: 2 weight_decay: 0
  convolution_param { num_output: 2 kernel_size: 3 } }
layers { layer { name: "p" type: "padding" pad: 1 } bottom: "c" top: "p" }
layers { layer { name: "q" type: "pool" kernelsize: 3 pool: AVE } bottom: "p" top: "q" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "step" gamma: 0.1 stepsize: 10 max_iter: 7'


def weights() -> Weights:
    dice = np.random.default_rng(0)
    arrays = {
        "conv": [dice.normal(size=(4, 3, 3, 3)), dice.normal(size=4)],
        "ip": [dice.normal(size=(5, 16)), dice.normal(size=5)],
    }
    parameters = {k: [a.astype(np.float32) for a in v] for k, v in arrays.items()}
    return Weights(parameters, 12, {"history": parameters}, gradients=parameters)


def caffe_like(path: Path) -> None:
    """An HDF5 file as Caffe writes it: in the library's oldest format, without an order of groups."""
    import h5py

    with h5py.File(path, "w", libver="earliest") as file:
        for name, arrays in weights().parameters.items():
            for number, array in enumerate(arrays):
                file[f"data/{name}/{number}"] = array
                file[f"history/{2 * (name == 'ip') + number}"] = array
        file["iter"], file["current_step"] = np.array([3], np.int32), np.array([0], np.int32)
        file["learned_net"] = np.bytes_("w.caffemodel.h5")


def by_writer(runtime: Runtime, path: Path) -> None:
    runtime.write(path, weights())


def as_text(text: str) -> Callable[[Runtime, Path], None]:
    return lambda runtime, path: path.write_text(text) and None


def as_binary(text: str) -> Callable[[Runtime, Path], None]:
    def write(runtime: Runtime, path: Path) -> None:
        source = path.with_name("source.prototxt")
        source.write_text(text)
        runtime.program("convert_model", source, path)

    return write


FORMATS: dict[str, Callable[[Runtime, Path], None]] = {
    "w.caffemodel": by_writer,
    "w.caffemodel.h5": by_writer,
    "w.solverstate": by_writer,
    "w.solverstate.h5": by_writer,
    "caffe.caffemodel.h5": lambda runtime, path: caffe_like(path),
    "caffe.solverstate.h5": lambda runtime, path: caffe_like(path),
    "n.binarynet": as_binary(NET),
    "s.binarynet": as_binary(SOLVER),
    "n.prototxt": as_text(NET),
    "older.prototxt": as_text(OLDER),
    "s.prototxt": as_text(SOLVER),
}


def damaged(dice: random.Random, original: bytes) -> bytes:
    """One to six wounds: a byte, a number, a piece gone or doubled, the end gone. Most are where the
    form is, in the beginning."""
    data = bytearray(original)
    for _ in range(dice.randint(1, 6)):
        where = dice.randrange(max(1, min(len(data), dice.choice([60, 500, len(data)]))))
        match dice.randrange(12):
            case 0 | 1 | 2 | 3:
                data[where : where + 1] = bytes([dice.randrange(256)])
            case 4 | 5:
                data[where : where + 8] = dice.choice(
                    [b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little")]
                )
            case 6 | 7:
                del data[where : where + dice.randint(1, 40)]
            case 8 | 9:
                data[where:where] = data[where : where + dice.randint(1, 40)]
            case 10:
                digits = str(dice.choice([0, -1, 2_000_000_000, 1 << 63, 10**30])).encode()
                data[where : where + dice.randint(0, 3)] = digits
            case _ if dice.random() < 0.2:
                del data[where:]
    return bytes(data)


def use(runtime: Runtime, path: Path) -> None:
    """Ask a file for all that it may have."""
    reader = runtime.read(path)
    for part in (reader.weights, lambda: reader.net("train"), lambda: reader.net("test"), reader.solver):
        try:
            part()
        except DemitasseError as error:
            assert len(str(error)) < 4000


def attack(runtime: Runtime, folder: Path, name: str, times: int) -> None:
    path = folder / name
    (folder / "net.prototxt").write_text(NET)
    FORMATS[name](runtime, path)
    original = path.read_bytes()
    use(runtime, path)  # what is imported or cached at the first use is no file's doing
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, limits[1]))
    try:
        for number in range(times):
            path.write_bytes(damaged(random.Random(f"{name} {number}"), original))
            try:
                use(runtime, path)
            except DemitasseError as error:
                assert len(str(error)) < 4000
            except BaseException as error:
                error.add_note(f"{name}, damaged with seed '{name} {number}'")
                raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.fixture(scope="module")
def runtime() -> Any:
    with demitasse.compose(plugins=["caffe"]) as composed:
        yield composed


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="what a process has taken is read from /proc here"
)


@needs_proc
@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_refused(runtime: Runtime, tmp_path: Path, name: str) -> None:
    attack(runtime, tmp_path, name, QUICK)


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_files_are_read_or_refused(
    runtime: Runtime, tmp_path: Path, name: str
) -> None:
    attack(runtime, tmp_path, name, WHOLE)


def test_random_bytes_are_refused_in_every_format(runtime: Runtime, tmp_path: Path) -> None:
    dice = random.Random(5)
    for name in FORMATS:
        path = tmp_path / name
        for length in (1, 8, 100, 5000):
            path.write_bytes(dice.randbytes(length))
            with pytest.raises(DemitasseError, match=name):
                runtime.read(path).weights()


# A text asks for the absurd.

ASKED = r"n\.prototxt:\d+: layer '\w+' .* would have .* elements; at most [\d,]+"


@pytest.fixture(scope="module")
def whole() -> Any:
    with demitasse.compose(plugins=["-tuning"]) as composed:
        yield composed


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_output: 4", "num_output: 2000000000", ASKED),
        ("num_output: 5", "num_output: 2000000000", ASKED),
        ("dim: 2 dim: 3", "dim: 2000000000000 dim: 3", ASKED),
        ("dim: 3 dim: 6", "dim: 4000000000 dim: 4000000000", ASKED),
        ("dim: 2 dim: 3", "dim: -2 dim: 3", r"has the shape \(-2, 3, 6, 6\); write input_param"),
        ("dim: 2 dim: 3", "dim: 2 " * 5000, r"layer 'data' .* would have 5,002 axes; at most 32"),
        ("kernel_size: 3", "kernel_size: 4000000000", r"conv"),
        ("num_output: 4", "num_output: 99999999999", r":\d+:\d+: layer 'conv': num_output"),
        ("num_output: 4", "num_output: true", r":\d+:\d+: layer 'conv': num_output"),
        ("num_output: 4", "num_ouput: 4", r"unknown field 'num_ouput'; did you mean 'num_output'"),
    ],
)
def test_absurd_sizes_and_wrong_fields_end_before_memory_is_taken(
    whole: Runtime, tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "n.prototxt"
    path.write_text(NET.replace(old, new, 1).replace('include { phase: TEST stage: "s" }', ""))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DemitasseError, match=message):
        whole.net(path).forward()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18, "KiB"


def test_a_stride_beyond_32_bits_is_computed(whole: Runtime, tmp_path: Path) -> None:
    """oneDNN has none: a loop does it."""
    path = tmp_path / "n.prototxt"
    path.write_text(
        """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 6 } } }
        layer { name: "y" type: "Convolution" bottom: "x" top: "y" convolution_param {
            num_output: 3 kernel_size: 2 stride: 4294967295 weight_filler { type: "xavier" } } }
        """
    )
    net = whole.net(path)
    x = np.random.default_rng(0).normal(size=(1, 2, 6, 6)).astype(np.float32)
    w, b = (np.asarray(each, np.float64) for each in net.params["y"])
    expected = np.einsum("nchw,kchw->nk", x[:, :, :2, :2].astype(np.float64), w) + b
    assert net.forward(x=x)["y"][:, :, 0, 0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("many", ["order: 7 " * 9000, "order: 0 order: 1 order: 2 order: 3"])
def test_an_error_is_no_longer_than_can_be_read(whole: Runtime, tmp_path: Path, many: str) -> None:
    path = tmp_path / "n.prototxt"
    kind = "Permute" if "7" in many else "Permute" + "x" * 9000
    path.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }\n'
        f'layer {{ name: "{"y" * 9000}" type: "{kind}" bottom: "x" top: "y" '
        f"permute_param {{ {many} }} }}"
    )
    with pytest.raises(ModelError, match=r"n\.prototxt:2: layer 'yyy") as caught:
        whole.net(path)
    assert len(str(caught.value)) < 5000


def test_a_net_parses_as_text_that_protobuf_made(tmp_path: Path, runtime: Runtime) -> None:
    """The seeds of the fuzzing are what they should be."""
    from demitasse_caffe.schema import schema

    for text, kind in ((NET, "NetParameter"), (OLDER, "NetParameter"), (SOLVER, "SolverParameter")):
        assert text_format.Parse(text, schema({}).message(kind)).ListFields()
