"""Pictures of nets: what they show, where it is, and that the SVG is well-formed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from drawn_examples import examples
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DemitasseError, ModelError
from demitasse_caffe.blob_shapes import blob_shapes
from demitasse_caffe.drawing import svg
from demitasse_caffe.layer_summary import family
from demitasse_caffe.layered_layout import Line, arrange, nearest_in_order
from demitasse_caffe.layers import LAYER_TYPES
from demitasse_caffe.net import read_net
from demitasse_caffe.schema import schema

SVG = "{http://www.w3.org/2000/svg}"

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "drop1" type: "Dropout" bottom: "conv1" top: "conv1" dropout_param { dropout_ratio: 0.4 } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
        pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool1" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "top" type: "Softmax" bottom: "fc" top: "prob" include { phase: TEST } }
"""


def message(text: str) -> Any:
    return text_format.Parse(text, schema({}).message("NetParameter"))


def words(picture: str) -> list[str]:
    """Return the texts of a picture, in order."""
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def boxes(picture: str) -> dict[str, tuple[float, float, float, float]]:
    """Return the rectangle of each box by its name: left, top, width, height."""
    found = {}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        name = next((t.text for t in group.findall(f"{SVG}text") if t.get("class") == "name"), None)
        if name is not None:
            x, y = map(float, re.findall(r"[-\d.]+", group.get("transform", "")))
            frame = group.find(f"{SVG}rect")
            assert frame is not None
            found[name] = (x, y, float(frame.get("width", "")), float(frame.get("height", "")))
    return found


def test_a_layer_shows_its_name_its_type_and_the_numbers_that_people_look_for() -> None:
    said = words(svg(message(NET), phase="TEST"))
    for words_ in (
        ["conv1", "Convolution", "3×3 · stride 2 · pad 1 · 4 outputs"],
        ["average 2×2 · stride 2"],
    ):
        assert set(words_) <= set(said)
    assert "5 outputs" in said


def test_a_blob_shows_its_shape_and_an_output_its_own() -> None:
    said = words(svg(message(NET), phase="TEST"))
    assert {"2×3×8×8", "2×4×4×4", "2×4×2×2", "2×5"} <= set(said)
    assert said.count("2×5") == 3  # the halo and the text of fc, and the output prob


def test_layers_in_place_are_chips_in_the_box_of_their_blob() -> None:
    picture = svg(message(NET))
    assert {"ReLU", "Dropout 0.4"} <= set(words(picture))
    assert not {"relu1", "drop1"} & set(boxes(picture))
    assert "relu1: ReLU" in picture


def test_a_layer_in_place_after_another_reader_is_a_box_of_its_own() -> None:
    text = NET + 'layer { name: "late" type: "ReLU" bottom: "fc" top: "fc" }'
    assert "late" in boxes(svg(message(text)))


@pytest.mark.parametrize(("rankdir", "axis", "sign"), [("TB", 1, 1), ("BT", 1, -1), ("LR", 0, 1)])
def test_data_flows_where_rankdir_says(rankdir: str, axis: int, sign: int) -> None:
    found = boxes(svg(message(NET), rankdir))
    chain = [found[name][axis] * sign for name in ("data", "conv1", "pool1", "fc", "top", "prob")]
    assert chain == sorted(chain)


def test_one_phase_shows_its_own_layers_and_none_the_layers_of_both() -> None:
    assert "top" in boxes(svg(message(NET), phase="TEST"))
    assert "top" not in boxes(svg(message(NET), phase=0))
    assert "top" in boxes(svg(message(NET)))


@pytest.mark.parametrize(
    ("options", "valid"),
    [({"rankdir": "UP"}, "BT, LR, TB"), ({"phase": "TRIAN"}, "did you mean 'TRAIN'")],
)
def test_a_wrong_direction_or_phase_says_which_are_valid(options: dict[str, str], valid: str) -> None:
    with pytest.raises(ModelError, match=valid):
        svg(message(NET), **options)


def test_a_net_that_cannot_be_planned_is_drawn_without_the_shapes_that_nobody_knows() -> None:
    text = NET.replace('type: "Pooling"', 'type: "Foreign"')
    said = words(svg(message(text)))
    assert {"Foreign", "2×4×4×4"} <= set(said)
    assert "2×5" not in said


def test_samples_that_are_not_at_hand_are_taken_for_what_the_file_says_of_them() -> None:
    data = """
    layer {{ name: "data" type: "Data" top: "data" top: "label"
            transform_param {{ crop_size: 8 mean_file: "nowhere.binaryproto" {} }}
            data_param {{ source: "nowhere_lmdb" batch_size: 2 }} }}
    """
    rest = NET[NET.index('layer { name: "conv1"') :]
    said = words(svg(message(data.format("") + rest)))
    assert "the size of the images in data is assumed" in said
    assert {"2×3×8×8", "2×4×4×4"} <= set(said)
    two = data.format("") + data.format("").replace('"data"', f'"{"validation" * 3}"', 1)
    whole = f"the size of the images in data, {'validation' * 3} is assumed"  # longer than names may be
    assert whole in words(svg(message(two + data.format("").replace("label", "other") + rest)))
    assert "2×1×8×8" in words(svg(message(data.format("force_gray: true") + rest)))


@pytest.mark.parametrize("rankdir", ["TB", "BT", "LR"])
@pytest.mark.parametrize("tops", [1, 2, 3, 12])
def test_labels_of_one_box_do_not_cover_each_other(rankdir: str, tops: int) -> None:
    shape = "shape { dim: 32 dim: 3 dim: 224 dim: 224 }"
    names = [f"part_{i}" for i in range(tops)]
    data = "".join(f'top: "{name}" ' for name in names)
    layers = [f'layer {{ name: "data" type: "Input" {data} input_param {{ {shape} }} }}']
    layers += [f'layer {{ name: "r{n}" type: "Sigmoid" bottom: "{n}" top: "r{n}" }}' for n in names]
    root = ElementTree.fromstring(svg(message("\n".join(layers)), rankdir))
    spots = []
    for text in root.iter(f"{SVG}text"):
        if text.get("class") == "shape" and (text.text or "").startswith("part_"):
            wide = 5.5 * len(text.text or "")
            x, y = float(text.get("x", "")), float(text.get("y", ""))
            spots.append((x - wide if text.get("text-anchor") == "end" else x, y, wide))
    for (x, y, wide), (u, v, broad) in itertools.combinations(spots, 2):
        assert x + wide <= u or u + broad <= x or abs(y - v) >= 10
    assert len(spots) == tops if tops <= 2 else spots
    told = [line.findtext(f"{SVG}title") for line in root.iter(f"{SVG}path")]
    assert [f"part_{i}  32×3×224×224" for i in range(tops)] == sorted(
        filter(lambda words: (words or "").startswith("part_"), told),
        key=lambda w: int(w.split()[0][5:]),
    )


@settings(max_examples=examples(50))
@given(st.text(min_size=1, max_size=60))
def test_any_name_makes_a_well_formed_picture(name: str) -> None:
    net = message(NET)
    net.name = net.layer[1].name = name
    ElementTree.fromstring(svg(net))


@st.composite
def graphs(draw: Any) -> tuple[list[tuple[float, float]], list[Line]]:
    count = draw(st.integers(1, 14))
    sizes = draw(
        st.lists(st.tuples(st.floats(20, 90), st.floats(15, 60)), min_size=count, max_size=count)
    )
    pairs = [(a, b) for a, b in itertools.combinations(range(count), 2)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=25, unique=True)) if pairs else []
    return sizes, [Line(a, b, a) for a, b in chosen]


@settings(max_examples=examples(80))
@given(graphs())
def test_boxes_never_overlap_and_lines_lead_from_box_to_box(
    graph: tuple[list[tuple[float, float]], list[Line]],
) -> None:
    sizes, lines = graph
    layout = arrange(sizes, lines, gap=10.0, rank_gap=20.0)
    frames = list(zip(layout.middles, sizes, strict=True))
    for ((ax, ay), (aw, ah)), ((bx, by), (bw, bh)) in itertools.combinations(frames, 2):
        assert abs(ax - bx) >= (aw + bw) / 2 + 10 - 1e-6 or abs(ay - by) >= (ah + bh) / 2
    for line, route in zip(lines, layout.routes, strict=True):
        (x, y), (breadth, depth) = frames[line.source]
        assert abs(route[0][0] - x) <= breadth / 2
        assert route[0][1] == pytest.approx(y + depth / 2)
        (x, y), (breadth, depth) = frames[line.target]
        assert abs(route[-1][0] - x) <= breadth / 2
        assert route[-1][1] == pytest.approx(y - depth / 2)
        assert all(a[1] <= b[1] + 1e-9 for a, b in itertools.pairwise(route))
    for (x, y), (breadth, depth) in frames:
        assert x - breadth / 2 >= -1e-6 and x + breadth / 2 <= layout.breadth + 1e-6
        assert y - depth / 2 >= -1e-6 and y + depth / 2 <= layout.depth + 1e-6


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0.1, 9)), min_size=1, max_size=8), st.randoms())
def test_places_in_order_are_nearer_to_what_is_wanted_than_any_others(
    given_: list[tuple[float, float]], random: Any
) -> None:
    wanted, weights = zip(*given_, strict=True)
    apart = [random.uniform(0, 9) for _ in wanted[1:]]
    found = nearest_in_order(wanted, weights, apart)

    def cost(places: list[float]) -> float:
        return sum(w * (p - x) ** 2 for w, p, x in zip(weights, places, wanted, strict=True))

    steps = list(zip(itertools.pairwise(found), apart, strict=True))
    assert all(b - a >= distance - 1e-6 for (a, b), distance in steps)
    other = [random.uniform(-60, 60)]
    for distance in apart:
        other.append(other[-1] + distance + random.choice([0, random.uniform(0, 20)]))
    for share in (0.01, 0.5, 1.0):
        mixed = [p + share * (q - p) for p, q in zip(found, other, strict=True)]
        assert cost(found) <= cost(mixed) + 1e-6


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="from box 1 to 1"):
        arrange([(1.0, 1.0), (1.0, 1.0)], [Line(1, 1, 0)])


def test_thousands_of_layers_that_all_read_one_blob_are_drawn_in_seconds() -> None:
    reader = 'layer {{ name: "r{0}" type: "Eltwise" bottom: "data" bottom: "{1}" top: "r{0}" }}'
    first = NET.splitlines()[2]
    chain = [reader.format(i, f"r{i - 1}" if i else "data") for i in range(1500)]
    assert svg(message("\n".join([first, *chain]))).count("<g ") > 1500


def test_the_real_nets_are_drawn_with_all_their_shapes(shared: Path) -> None:
    folder = shared / "prototxt"
    for name, shape in (
        ("BVLC+caffe/models/bvlc_googlenet/deploy.prototxt", "10×1024×7×7"),
        ("KaimingHe+deep-residual-networks/prototxt/ResNet-152-deploy.prototxt", "1×2048×7×7"),
    ):
        said = words(svg(read_net(folder / name, schema({})).message))
        assert shape in said


@pytest.mark.parametrize("apart", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_real_nets_are_drawn(shared: Path, apart: int) -> None:
    """Draws every fourth net, or all of them."""
    drawn = 0
    for path in sorted((shared / "prototxt").rglob("*.prototxt"))[::apart]:
        try:
            net = read_net(path, schema({})).message
        except DemitasseError:
            continue  # solvers, fragments and forks
        ElementTree.fromstring(svg(net, "LR", "TEST"))
        drawn += 1
    assert drawn > 60 / apart


def test_the_command_writes_the_picture(tmp_path: Path, read: Callable[..., Any]) -> None:
    from click.testing import CliRunner

    from demitasse_caffe.draw_command import command

    net, target = tmp_path / "small.prototxt", tmp_path / "small.svg"
    net.write_text(NET)
    done = CliRunner().invoke(command, [str(net), str(target), "--phase", "test", "--rankdir", "lr"])
    assert done.exit_code == 0, done.output
    assert done.output == f"wrote {target}: 7 layers\n"
    assert "prob" in boxes(target.read_text())


def test_shapes_that_the_file_says_need_no_samples(read: Any) -> None:
    """A program that draws a picture needs no samples either, nor a source for them."""
    text = """layer { name: "d" type: "DummyData" top: "x" top: "y"
                      dummy_data_param { shape { dim: 16 dim: 3 dim: 9 } shape { dim: 16 } } }"""
    for phase in ("train", "test"):
        assert blob_shapes(read(text).net(phase).layers, phase) == ([[(16, 3, 9), (16,)]], [])


def test_each_type_of_ours_has_a_colour() -> None:
    assert [kind.name for kind in LAYER_TYPES if family(kind.name) == "other"] == []


def test_what_is_read_over_is_told(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from demitasse_caffe.draw_command import command

    net = tmp_path / "net.prototxt"
    net.write_text(f'engine: "MKLDNN"\n{NET}')
    done = CliRunner().invoke(command, [str(net), str(tmp_path / "net.svg")])
    assert f"{net}: fields of Intel's fork that have no effect here: engine (line 1)\n" in done.output


def test_what_a_fork_has_in_caffes_layers_is_said_to_be_left_out(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from demitasse_caffe.draw_command import command

    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param { pool: AVE_X } }'
        'layer { name: "r" type: "MaskPooling" bottom: "y" top: "z" }'
    )
    done = CliRunner().invoke(command, [str(net), str(tmp_path / "net.svg")])
    assert done.exit_code == 0
    assert "ignored in the drawing: " in done.output
    assert "layer 'p': unknown value of pool 'AVE_X'" in done.output


def test_a_picture_of_another_kind_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from demitasse_caffe.draw_command import command

    net, target = tmp_path / "small.prototxt", tmp_path / "small.png"
    net.write_text(NET)
    done = CliRunner().invoke(command, [str(net), str(target)])
    assert done.exit_code == 2
    assert f"name {target.with_suffix('.svg')}" in done.output
    assert not target.exists()
    assert "name small.svg" in CliRunner().invoke(command, [str(net), "."]).output
