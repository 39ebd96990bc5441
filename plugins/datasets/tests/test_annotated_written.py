"""Images and their annotations as databases of AnnotatedDatum: from VOC's XML, COCO's JSON and text,
read back by protobuf's own reader and by ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest
from annotated_files import message
from hypothesis import given
from hypothesis import strategies as st

import demitasse
from demitasse import DataError
from demitasse_datasets.annotated.annotations import read_label_map
from demitasse_datasets.annotated.record import parse_annotated, serialize_annotated
from demitasse_datasets.convert import Form
from demitasse_datasets.datum import Datum

MAP = """item { name: "none_of_the_above" label: 0 display_name: "background" }  # nobody's
item {
  name: "c#"
  label: 1
  display_name: "car }"
}
item { name: "62" label: 2 }
"""
OBJECTS = [("c#", (5, 3, 20, 12), 0), ("62", (0, 0, 40, 30), 1), ("c#", (1.5, 2, 3, 4), 0)]
XML = "<object><name>{}</name><difficult>{}</difficult><bndbox>{}</bndbox></object>"


def annotation(form: str, objects: Any = OBJECTS, size: bool = True) -> str:
    """Return a file about an image of 40 x 30 pixels."""
    if form == "xml":
        things = "".join(
            XML.format(
                name.replace("&", "&amp;"),
                difficult,
                "".join(
                    f"<{side}>{value}</{side}>"
                    for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
                ),
            )
            for name, box, difficult in objects
        )
        said = "<size><width>40</width><height>30</height><depth>3</depth></size>" if size else ""
        return f"<annotation><filename>a</filename>{said}{things}</annotation>"
    if form == "json":
        about = [
            {"category_id": name, "bbox": [x, y, right - x, low - y], "iscrowd": difficult}
            for name, (x, y, right, low), difficult in objects
        ]
        return json.dumps(
            {"annotation": about, **({"image": {"width": 40, "height": 30}} if size else {})}
        )
    numbers = {"c#": 1, "62": 2}
    return "\n".join(f"{numbers[name]} {' '.join(map(str, box))}\n" for name, box, _ in objects)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """The database of three images, in a lossless format, whose files describe the same objects."""

    def write(form: str = "xml", text: str | None = None, **options: Any) -> Path:
        for part in ("images", "about"):
            (tmp_path / part).mkdir(exist_ok=True)
        (tmp_path / "map.prototxt").write_text(MAP)
        dice, lines = np.random.default_rng(0), []
        for number in range(3):
            pixels = dice.integers(0, 256, (30, 40, 3)).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), pixels)
            said = annotation(form) if text is None else text
            (tmp_path / "about" / f"{number}.{form}").write_text(said)
            lines.append(f"images/{number}.png about/{number}.{form}")
        (tmp_path / "list.txt").write_text("\n".join(lines))
        given = {"labels": tmp_path / "map.prototxt", "form": form, "force": True, **options}
        with demitasse.compose(plugins=["datasets"]) as runtime:
            target = tmp_path / "db"
            count = runtime.program(
                "convert_annotated", tmp_path / "list.txt", target, root=f"{tmp_path}/", **given
            )
        assert count == 3
        return target

    return write


def records(path: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(path), lock=False, readonly=True) as database, database.begin() as transaction:
        return list(transaction.cursor())


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("form", ["xml", "json", "txt"])
def test_all_forms_say_the_same_and_protobuf_reads_it(
    written: Callable[..., Path], form: str, size: bool
) -> None:
    path = written(form, annotation(form, size=size), encoded=True)
    found = records(path)
    assert [key for key, _ in found] == [f"{n:08d}_images/{n}.png".encode() for n in range(3)]
    for number, (_, value) in enumerate(found):
        record = message("AnnotatedDatum").FromString(value)
        assert record.type == 0 and record.HasField("type")
        assert record.datum.encoded and record.datum.data == _file(path, number).read_bytes()
        assert [group.group_label for group in record.annotation_group] == [1, 2]
        first, second = record.annotation_group
        assert [each.instance_id for each in first.annotation] == [0, 1]
        boxes = [each.bbox for group in (first, second) for each in group.annotation]
        corners = [[box.xmin, box.ymin, box.xmax, box.ymax] for box in boxes]
        wanted = np.array([OBJECTS[n][1] for n in (0, 2, 1)]) / [40, 30, 40, 30]
        np.testing.assert_allclose(corners, wanted, rtol=1e-6)
        assert [box.difficult for box in boxes] == [False, False, form != "txt"]


def _file(database: Path, number: int) -> Path:
    return database.parent / "images" / f"{number}.png"


@given(st.integers(0, 10**6))
def test_what_is_written_is_read(seed: int) -> None:
    dice = np.random.default_rng(seed)
    boxes = np.zeros((dice.integers(0, 9), 7))
    boxes[:, 0] = np.sort(dice.integers(-3, 4, len(boxes)))
    boxes[:, 1] = dice.integers(-(2**31), 2**31, len(boxes))
    boxes[:, 2:6] = dice.normal(size=(len(boxes), 4)).astype(np.float32)
    boxes[:, 6] = dice.integers(0, 2, len(boxes))
    datum = Datum(1, 2, 3, bytes(6), 4)
    found = parse_annotated(serialize_annotated(datum, boxes))
    np.testing.assert_array_equal(found.boxes, boxes)
    assert found.datum.label == 4 and found.datum.pixels().shape == (1, 2, 3)


def test_images_are_resized_and_boxes_stay_shares(
    written: Callable[..., Path], opened: Callable[..., Any], everything: Callable[..., Any]
) -> None:
    for options, shape in (
        ({"height": 10, "width": 12, "gray": True}, (1, 10, 12)),
        ({"shorter": 15}, (3, 15, 20)),
        ({"shorter": 15, "longest": 16}, (3, 12, 16)),
        ({"longest": 16, "encoded": "png"}, (3, 12, 16)),
    ):
        source = opened(str(written("xml", **options)), "annotated", options={"objects": 4})
        samples = everything(source)
        assert samples["data"].shape == (3, *shape)
        mode = cv2.IMREAD_GRAYSCALE if shape[0] == 1 else cv2.IMREAD_COLOR
        pixels = cv2.imread(str(_file(Path(source.name), 1)), mode)
        wanted = cv2.resize(pixels, shape[:0:-1]).reshape(*shape[1:], -1).transpose(2, 0, 1)
        np.testing.assert_array_equal(samples["data"][1], wanted)
        np.testing.assert_allclose(samples["label"][2, 0, 2, 3:7], [0, 0, 1, 1])
        source.close()


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 900), st.integers(0, 900))
def test_proportions_are_kept(height: int, width: int, shorter: int, longest: int) -> None:
    rows, columns = Form(shorter=shorter, longest=longest).size(height, width)
    if not shorter and not longest:
        assert (rows, columns) == (height, width)
    assert not longest or max(rows, columns) <= max(longest, 1)
    if shorter and (not longest or max(rows, columns) < longest - 1):
        assert min(rows, columns) == shorter
    low, high = sorted((rows, columns))
    scale = (high if longest and high == longest else low) / (
        max(height, width) if longest and high == longest else min(height, width)
    )
    assert (abs(rows - height * scale) <= 1 and abs(columns - width * scale) <= 1) or low == 1


BOX = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>"

SIZED = (
    f"<a><size><width>{{}}</width><height>{{}}</height></size><object><name>62</name>{BOX}</object></a>"
)


@pytest.mark.parametrize(
    ("form", "text", "told"),
    [
        ("xml", "<annotation>", r"list.txt:1: .*0.png: .*about/0.xml: is not XML: no element found"),
        (
            "xml",
            f"<a><object><name>C#</name>{BOX}</object></a>",
            r"object 1: unknown class 'C#'; did you mean 'c#'\?",
        ),
        ("xml", "<a><object><name>62</name></object></a>", r"object 1 \(62\): has no bndbox of numbers"),
        (
            "xml",
            f"<a><object><name>62</name>{BOX.replace('>3<', '>0<')}</object></a>",
            r"object 1: is not a box: xmin 1, ymin 2, xmax 0, ymax 4",
        ),
        ("json", "{", "about/0.json: is not the JSON of an image, .*JSONDecodeError"),
        (
            "json",
            '{"annotation": [{"category_id": 62}]}',
            "is not the JSON of an image, .*KeyError: 'bbox'",
        ),
        ("json", '{"annotation": [{"category_id": 63}]}', "annotation 1: unknown class '63'"),
        ("json", "[]", "is not the JSON of an image, .*AttributeError"),
        ("txt", "1 2 3 4", "about/0.txt:1: '1 2 3 4' is not a label and xmin ymin xmax ymax"),
        ("txt", "\n1.5 2 3 4 5", "about/0.txt:2: '1.5 2 3 4 5' is not a label"),
        ("txt", "nan 2 3 4 5", "about/0.txt:1: 'nan 2 3 4 5' is not a label"),
        ("xml", SIZED.format("inf", 9), r"0.xml: it says that the image is inf x 9"),
        ("xml", SIZED.format(9, "nan"), r"0.xml: it says that the image is 9 x nan"),
        ("xml", SIZED.format("1" + "0" * 400, 9), r"0.xml: it says that the image is inf x 9"),
        (
            "json",
            '{"image": {"width": 1e999}, "annotation": []}',
            "is not the JSON of an .*OverflowError",
        ),
        (
            "json",
            f'{{"annotation": [{{"category_id": 62, "bbox": [{"9" * 400}, 1, 1, 1]}}]}}',
            "is not the JSON of an image, .*OverflowError",
        ),
        ("txt", "5000000000 1 2 3 4", "about/0.txt:1: the label 5e\\+09 does not fit 32 bits"),
        ("txt", "1 2 3 4 inf", "about/0.txt:1: is not a box: .*ymax inf"),
    ],
)
def test_mistakes_in_files_are_named(
    written: Callable[..., Path], tmp_path: Path, form: str, text: str, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        written(form, text)
    assert not (tmp_path / "db").exists()


def test_mistakes_in_what_is_asked_are_named(written: Callable[..., Path], tmp_path: Path) -> None:
    def fails(match: str, **options: Any) -> None:
        with pytest.raises(DataError, match=match):
            written(**options)

    fails(r"xml files name classes; give a label map \(--label_map_file\)", labels="")
    fails("unknown form of annotations 'voc'.*xml", form="voc")
    fails("give a height and a width, or the shorter and", height=3, width=3, shorter=4)
    fails("unknown format of encoded images 'jpgg'", encoded="jpgg")
    fails(r"no_map: cannot be read: No such file", labels=tmp_path / "no_map")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "list.txt").write_text("a.png b.xml c\n")
    with demitasse.compose(plugins=["datasets"]) as runtime:

        def convert(name: str) -> None:
            runtime.program("convert_annotated", tmp_path / name, tmp_path / "db", form="txt")

        with pytest.raises(DataError, match=r"list.txt:1: 'a.png b.xml c' is not an image and a file"):
            convert("bad/list.txt")
        (tmp_path / "bad" / "list.txt").write_text("a.png b.txt\n")
        with pytest.raises(DataError, match=r"list.txt:1: a.png: cannot be read: No such file"):
            convert("bad/list.txt")
        cv2.imwrite(str(tmp_path / "bad" / "a.png"), np.zeros((3, 3), np.uint8))
        with pytest.raises(DataError, match=r"list.txt:1: a.png: b.txt: cannot be read: No such"):
            convert("bad/list.txt")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not a label map: it has no items"),
        ("item { name: 'a' }", "item 1 needs a name and a label that is a whole number"),
        ('item { name: "a" label: x1 }', "item 1 needs a name and a label"),
        (
            'item { name: "a" label: 1 } item { name: "a" label: 2 }',
            "item 2: the name 'a' was given before",
        ),
        ('thing { name: "a" label: 1 }', "'thing { name: .* is not an item"),
        ('item { name: "a" label: 1 ', "is not an item"),
    ],
)
def test_what_is_no_label_map_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "map").write_text(text)
    with pytest.raises(DataError, match=told):
        read_label_map(tmp_path / "map")


def test_a_real_label_map_is_read(shared: Path, tmp_path: Path) -> None:
    path = shared / "prototxt/chuanqi305+MobileNet-SSD/create_lmdb/code/labelmap.prototxt"
    if not path.is_file():
        pytest.skip(f"no {path}")
    found = read_label_map(path)
    assert found["none_of_the_above"] == 0 and sorted(found.values()) == list(range(len(found)))
    (tmp_path / "map").write_text(MAP)
    assert read_label_map(tmp_path / "map") == {"none_of_the_above": 0, "c#": 1, "62": 2}
