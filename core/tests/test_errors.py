"""What every message needs: the nearest name, the valid ones, and the missing part of a path."""

from __future__ import annotations

from pathlib import Path

from demitasse import nearest, nearest_path, unknown


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("relu", ["ReLU", "PReLU"]) == "ReLU"
    assert nearest("something else", ["ReLU"]) is None


def test_a_name_that_is_far_from_all_has_no_nearest() -> None:
    assert nearest("examples", ["alex", "build"]) is None
    options = ["--resume", "--hw", "--snapshot", "--stage"]
    assert nearest("--nosuch", options) is None and nearest("-x", options) is None
    assert nearest("--snapshots", options) == "--snapshot" and nearest("-stge", options) == "--stage"


def test_few_valid_names_are_all_listed() -> None:
    assert unknown("phase", "tets", ["train", "test"], "net") == (
        "net: unknown phase 'tets'; did you mean 'test'? (valid: test, train)"
    )
    assert unknown("phase", "tets", []) == "unknown phase 'tets' (valid: none)"


def test_a_name_that_is_a_line_break_breaks_no_line() -> None:
    assert unknown("blob", "x", ["\n", "y"]).endswith(r"(valid: '\n', y)")


def test_names_of_thousands_of_letters_are_shortened() -> None:
    assert len(unknown("layer", "a" * 5000, ["b" * 5000, "c"])) < 300


def test_of_many_valid_names_the_nearest_are_listed_and_the_others_counted() -> None:
    names = [f"Layer{number}" for number in range(70)] + ["Convolution", "Deconvolution"]
    told = unknown("layer type", "Convolutoin", names)
    assert "did you mean 'Convolution'? (valid: Convolution, Deconvolution, " in told
    assert told.endswith(" and 64 more)")
    assert told.count("Layer") == 6
    told = unknown("layer type", "Convolutoin", names, rest="which list(net.layers) gives")
    assert told.endswith(" and 64 more, which list(net.layers) gives)")
    assert unknown("phase", "tets", ["train"], rest="which nobody needs") == unknown(
        "phase", "tets", ["train"]
    )


def test_a_missing_file_is_told_with_the_nearest_name_beside_it(tmp_path: Path) -> None:
    for name in (".solvr.prototxt", "solver.prototxt"):  # a hidden file is never meant
        (tmp_path / name).touch()
    told = nearest_path(tmp_path / "solvr.prototxt")
    assert told == f"; did you mean '{tmp_path / 'solver.prototxt'}'?"


def test_a_hidden_file_is_told_only_where_a_hidden_one_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".solver").touch()
    assert nearest_path(tmp_path / "solver") == ""
    assert nearest_path(tmp_path / ".solvr") == f"; did you mean '{tmp_path / '.solver'}'?"


def test_a_missing_folder_is_told_with_the_nearest_name_beside_it(tmp_path: Path) -> None:
    (tmp_path / "examples" / "mnist").mkdir(parents=True)
    wrong = tmp_path / "exmples" / "mnist" / "solver.prototxt"
    missing, there = tmp_path / "exmples", tmp_path / "examples"
    assert nearest_path(wrong) == f"; there is no folder '{missing}', did you mean '{there}'?"
    deeper = tmp_path / "examples" / "cifar" / "solver.prototxt"
    assert nearest_path(deeper) == f"; there is no folder '{there / 'cifar'}'"


def test_a_file_in_the_place_of_a_folder_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "net").touch()
    assert nearest_path(tmp_path / "net" / "weights") == f"; there is no folder '{tmp_path / 'net'}'"


def test_nothing_is_told_of_a_path_that_is_like_no_other(tmp_path: Path) -> None:
    assert nearest_path(tmp_path / "solver.prototxt") == ""
    assert nearest_path("/") == ""


def test_an_ending_that_both_names_have_is_no_likeness(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "laptop.toml"):
        (tmp_path / name).touch()
    assert nearest_path(tmp_path / "nosuch.toml") == ""
    assert nearest_path(tmp_path / "labtop.toml") == f"; did you mean '{tmp_path / 'laptop.toml'}'?"
    assert nearest_path(tmp_path / "laptop.txt") == f"; did you mean '{tmp_path / 'laptop.toml'}'?"
    assert nearest_path(tmp_path / "laptop.tml") == f"; did you mean '{tmp_path / 'laptop.toml'}'?"
    assert nearest_path(tmp_path / "laptop") == f"; did you mean '{tmp_path / 'laptop.toml'}'?"
