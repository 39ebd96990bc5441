"""Files that other files name are found where Caffe's users keep them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demitasse import ModelError
from demitasse_caffe.paths import find, find_file, given, located


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    for folder in ("work", "caffe/examples/mnist"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "caffe/examples/mnist/net.prototxt").touch()
    monkeypatch.chdir(work)
    return tmp_path


def solver(tree: Path) -> Path:
    return tree / "caffe/examples/mnist/solver.prototxt"


def test_the_working_directory_comes_first_for_a_file_below_it(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "caffe/net.prototxt").touch()
    monkeypatch.chdir(tree / "caffe")
    assert find("net.prototxt", solver(tree))[0] == "net.prototxt"
    assert find("net.prototxt", "examples/mnist/solver.prototxt")[0] == "net.prototxt"


def test_a_like_named_file_of_the_working_directory_is_not_taken_for_anothers(tree: Path) -> None:
    Path("net.prototxt").touch()
    Path("own.prototxt").touch()
    for beside in (solver(tree), Path("../caffe/examples/mnist/solver.prototxt")):
        found = find("net.prototxt", beside)[0]
        assert found == str(solver(tree).with_name("net.prototxt"))
    assert find("own.prototxt", solver(tree))[0] == "own.prototxt"


def test_what_a_user_gives_is_the_working_directorys(tree: Path) -> None:
    Path("net.prototxt").touch()
    assert given("net.prototxt") == str(tree / "work/net.prototxt")
    assert given("net.*?split=test") == str(tree / "work/net.*") + "?split=test"
    assert given("digits:train") == "digits:train"


def test_a_working_directory_that_was_deleted_is_left_out(tree: Path) -> None:
    here = Path.cwd()
    here.rmdir()
    try:
        net = str(solver(tree).with_name("net.prototxt"))
        assert find("net.prototxt", solver(tree))[0] == net
        assert given(net) == located(net, solver(tree)) == net
        assert given("digits:train") == "digits:train"
        with pytest.raises(ModelError, match=r"'n.prototxt' was not found; .*; the working directory"):
            find_file("n.prototxt", solver(tree), "net")
        with pytest.raises(ModelError, match="; the working directory no longer exists"):
            find_file("n.prototxt", "solver.prototxt", "net")
    finally:
        here.mkdir()


def test_the_folder_of_the_file_comes_next(tree: Path) -> None:
    assert find("net.prototxt", solver(tree))[0] == str(solver(tree).with_name("net.prototxt"))


def test_a_path_from_the_root_of_the_project_is_found_by_walking_up(tree: Path) -> None:
    found, _ = find("examples/mnist/net.prototxt", solver(tree))
    assert found == str(solver(tree).with_name("net.prototxt"))


def test_a_path_of_another_project_is_found_by_its_bare_name(tree: Path) -> None:
    found, _ = find("some/where/net.prototxt", solver(tree))
    assert found == str(solver(tree).with_name("net.prototxt"))


def test_a_missing_file_lists_what_was_tried_and_the_nearest_name(tree: Path) -> None:
    with pytest.raises(ModelError, match=r"net 'nett\.prototxt' was not found; tried /.*, nett\.") as e:
        find_file("nett.prototxt", solver(tree), "net")
    assert f"did you mean '{solver(tree).with_name('net.prototxt')}'" in str(e.value)


def test_a_missing_net_is_not_taken_for_a_solver(tree: Path) -> None:
    solver(tree).touch()
    solver(tree).with_name("lenet_solver.prototxt").touch()
    with pytest.raises(ModelError) as e:
        find_file("some/lenet_solvr.prototxt", solver(tree), "net")
    assert "did you mean" not in str(e.value)
    with pytest.raises(ModelError) as e:
        find_file("some/lenett_solver.prototxt", solver(tree), "net")
    assert "lenet_solver" in str(e.value)


def test_a_nearer_name_that_cannot_be_meant_hides_no_other(tree: Path) -> None:
    for name in ("train_net.prototxt", "train_nett.prototxt.swp", ".train_nett.prototxt"):
        solver(tree).with_name(name).touch()
    solver(tree).with_name("train_nettt").mkdir()
    asking = solver(tree).with_name("train_nett_.prototxt")
    with pytest.raises(ModelError) as e:
        find_file("train_nett.prototxt", asking, "net")
    assert str(e.value).endswith(f"did you mean '{asking.with_name('train_net.prototxt')}'?")


def test_a_name_with_marks_and_words_of_a_sentence_is_suggested_whole(tree: Path) -> None:
    """The suggestion comes from the folder's names and is not parsed from the words of an error."""
    there = solver(tree).with_name("what did you mean 'net'?.prototxt")
    there.touch()
    with pytest.raises(ModelError) as e:
        find_file("what did you mean 'nets'?.prototxt", solver(tree), "net")
    assert str(e.value).endswith(f"did you mean {str(there)!r}?")


def test_a_missing_folder_is_told_with_the_nearest_name(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree / "caffe")
    with pytest.raises(ModelError) as e:
        find_file("exmples/mnist/net.prototx", solver(tree), "net")
    assert "there is no folder 'exmples', did you mean 'examples'?" in str(e.value)
    solver(tree).with_name("nets").mkdir()
    with pytest.raises(ModelError) as e:
        find_file("netz/small.prototxt", solver(tree), "net")
    assert f"did you mean '{solver(tree).with_name('nets')}'" in str(e.value)


def test_an_absolute_path_is_tried_as_it_is_and_then_its_name_beside_the_file(tree: Path) -> None:
    """A path from another machine does not exist here."""
    missing, beside = str(tree / "nowhere/own_net.prototxt"), solver(tree).with_name("own_net.prototxt")
    found, tried = find(missing, solver(tree))
    assert (found, tried[0], tried[-1]) == (None, missing, str(beside))
    beside.touch()
    assert find(missing, solver(tree))[0] == str(beside)
    Path(missing).parent.mkdir()
    Path(missing).touch()
    assert find(missing, solver(tree)) == (missing, [missing])


@pytest.mark.parametrize(
    "name",
    [
        "/data/someone/caffe/examples/mnist/x_lmdb",
        "/data/someone/work/mnist/x_lmdb",
        "~/somewhere/caffe/examples/mnist/x_lmdb",
        "/caffe/examples/mnist/x_lmdb",
        "D:/code/caffe/examples/mnist/x_lmdb",
        r"D:\code\caffe\examples\mnist\x_lmdb",
    ],
)
def test_the_last_parts_of_another_machines_path_are_looked_for_in_the_folders_above(
    tree: Path, name: str
) -> None:
    there = tree / "caffe/examples/mnist/x_lmdb"
    there.mkdir()
    (tree / "caffe/models/lenet").mkdir(parents=True)
    for beside in ("caffe/examples/mnist", "caffe/examples"):
        assert find(name, tree / beside / "solver.prototxt")[0] == str(there)
    deeper = find(name, tree / "caffe/models/lenet/solver.prototxt")[0]
    assert deeper == (str(there) if "examples" in name else None)


def test_a_path_with_windowss_separators_is_found(tree: Path) -> None:
    found, tried = find(r".\examples\mnist\net.prototxt", solver(tree))
    assert found == str(solver(tree).with_name("net.prototxt"))
    assert tried[0] == r".\examples\mnist\net.prototxt"
    assert find(r"..\mnist\net.prototxt", solver(tree))[0] is not None
    assert find(r"elsewhere\net.prototxt", solver(tree))[0] == found


def test_the_most_parts_win_and_a_bare_name_counts_beside_the_file_alone(tree: Path) -> None:
    for folder in ("caffe/examples/mnist/x_lmdb", "caffe/examples/x_lmdb", "caffe/train_lmdb"):
        (tree / folder).mkdir()
    within = tree / "caffe/examples/solver.prototxt"
    assert find("/data/someone/mnist/x_lmdb", within)[0] == str(tree / "caffe/examples/mnist/x_lmdb")
    assert find("/data/someone/cifar/x_lmdb", within)[0] == str(tree / "caffe/examples/x_lmdb")
    assert find("/data/someone/cifar/train_lmdb", within)[0] is None


def test_a_missing_file_of_another_machine_is_told_in_short(tree: Path) -> None:
    with pytest.raises(ModelError, match=r"tried /data/a/b/c/d\.prototxt, .* places above, .*/d\.proto"):
        find_file("/data/a/b/c/d.prototxt", solver(tree), "net")


def test_a_pattern_is_found_where_it_matches(tree: Path) -> None:
    (tree / "caffe/examples/mnist/batch_1.bin").touch()
    assert located("batch_*.bin", str(solver(tree))) == str(solver(tree).with_name("batch_*.bin"))


def test_a_pattern_is_of_a_folders_names_and_not_of_all_below_it(tree: Path) -> None:
    """An untrusted /**/x would otherwise search whole disks."""
    (tree / "caffe/examples/mnist/nowhere_else").touch()
    other = str(tree / "other.prototxt")
    assert find(f"{tree}/**/nowhere_else", other)[0] is None
    assert find(f"{tree}/caffe/*/**/nowhere_else", other)[0] is not None


def test_a_name_may_have_what_patterns_have(tree: Path) -> None:
    folder = tree / "net [v2]*?"
    folder.mkdir()
    (folder / "mean.binaryproto").touch()
    found, _ = find("mean.binaryproto", str(folder / "net.prototxt"))
    assert found == str(folder / "mean.binaryproto")


@pytest.mark.parametrize("word", ["digits:train", "no/such_lmdb", "a.bin,b.bin"])
def test_a_source_that_is_no_file_stays_as_it_is(tree: Path, word: str) -> None:
    assert located(word, str(solver(tree))) == word


def test_a_split_and_a_list_keep_their_form(tree: Path) -> None:
    folder = solver(tree).parent
    (folder / "a.bin").touch()
    assert located("a.bin, net.prototxt?split=test", str(solver(tree))) == (
        f"{folder / 'a.bin'},{folder / 'net.prototxt'}?split=test"
    )


def test_a_long_walk_upwards_is_told_in_short(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefgh")
    with pytest.raises(ModelError) as caught:
        find_file("x/net.prototxt", deep / "solver.prototxt", "net: file")
    message = str(caught.value)
    assert f"tried {deep / 'x/net.prototxt'}, {deep.parent / 'x/net.prototxt'}, " in message
    assert re.search(r", \d+ places above, ", message)
    assert message.count("net.prototxt") == 5  # the name itself, three places above, and the folder


def test_a_file_that_is_found_elsewhere_than_is_written_is_told(read: Any, tmp_path: Path) -> None:
    (tmp_path / "data/x_lmdb").mkdir(parents=True)
    (tmp_path / "data/mean.binaryproto").touch()
    data = (
        'layer { name: "d" type: "Data" top: "d"\n'
        'transform_param { mean_file: "data/mean.binaryproto" }\n'
        'data_param { source: "/data/someone/caffe/data/x_lmdb" batch_size: 1 } }'
    )
    path = tmp_path / "net.prototxt"
    told = f"source '/data/someone/caffe/data/x_lmdb' was not found; using {tmp_path / 'data/x_lmdb'}"
    assert read(data).net("train").notes == (f"{path}:1: layer 'd': {told}",)
    own = data.replace("/data/someone/caffe", str(tmp_path))
    assert read(own).net("train").notes == ()
    read(data)
    solver = 'net: "/data/someone/caffe/net.prototxt"\nbase_lr: 1 lr_policy: "fixed"'
    assert read(solver, "solver.prototxt").solver().notes == (
        f"{tmp_path / 'solver.prototxt'}:1: net: file '/data/someone/caffe/net.prototxt' was not found; "
        f"using {path}",
    )


def test_a_number_called_source_is_no_file(read: Any) -> None:
    kind = SimpleNamespace(name="Tap", parameters={"source": 3})
    net = read('layer { name: "t" type: "Tap" tap_param { source: 5 } }', types={"Tap": kind}).net(
        "test"
    )
    assert (net.layers[0].parameters["source"], net.notes) == (5, ())
