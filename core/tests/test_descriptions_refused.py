"""Descriptions that are rejected: the text, the file and the line of the message."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_files import TAIHULIGHT, read

from demitasse import DescriptionError, load_machine


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DescriptionError, match="is a pipe or a device; a file is needed here"):
            load_machine(path)


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_bytes(b"schema = 1\n# a\n# \xff\nname = 'x'\n")
    with pytest.raises(DescriptionError, match=r"machine.toml:3: is not UTF-8 text .*a byte 0xff\)"):
        load_machine(tmp_path / "machine.toml")


MISTAKES = [
    ("schema  = 1", "schema = 2", 1, "schema = 2", "valid: 1"),
    ("schema  = 1", "", 1, "needs 'schema'", "valid: 1"),
    ("schema  = 1", "schema = 1\nlink = {}", 2, "unknown key 'link'", "put it below its [[level]]"),
    ('"taihulight"', '"taihulight', 2, "machine.toml:2: Illegal character", "'\\n' in column 22"),
    ("count = 160", "precision = 'f32'", 7, "unknown key 'precision'", "before the first [[level]]"),
    ("schema  = 1", "schema = 1\nprecision = 'f31'", 2, "unknown precision 'f31'", "did you mean 'f32'"),
    ("count = 160", "mesh = " + "[" * 5000, 31, "nested too deep", ""),
    ("count = 160", "count = 1" + "0" * 5000, 7, ": 10000000000000000000...", "has too many digits"),
    ("count = 160", f"mesh = '{'x' * 5000}'", 7, "(5,002 characters)", "a list"),
    ("schema  = 1", "schema = true", 1, "schema = True", "valid: 1"),
    ('"taihulight"', '""', 2, "name = ''", "a string"),
    ('name    = "taihulight"', "", 3, "needs 'name'", ""),
    ('"caffe", ', "7, ", 3, "plugins = 7", "a string"),
    ("plugins =", "plugin =", 3, "unknown key 'plugin'", "did you mean 'plugins'"),
    ("plugins =", 'source = "paper"\nplugins =', 3, "unknown key 'source'", ""),
    ('name = "supernode"', "", 7, "a level needs 'name'", ""),
    ('name = "supernode"', 'name = "supernode"\nparent = "node"', 6, "unknown parent", "'node'"),
    ("count = 160", "count = 0", 7, "count = 0", "a whole number, 1 or more"),
    ("count = 160", "count = -3", 7, "count = -3", "a whole number, 1 or more"),
    ("count = 160", "count = 1.5", 7, "count = 1.5", "a whole number, 1 or more"),
    ("count = 160", "count = true", 7, "count = True", "a whole number, 1 or more"),
    ("count = 160", 'count = "160"', 7, "count = '160'", "a whole number, 1 or more"),
    ("count = 160", "cuont = 160", 7, "unknown key 'cuont'", "did you mean 'count'"),
    ('"12 GB/s", over', '"12 GB", over', 8, "bandwidth = '12 GB'", "like '12 GB/s'"),
    ('"12 GB/s", over', '"12 GBs", over', 8, "did you mean 'GB/s'", "like '12 GB/s'"),
    ('"12 GB/s", over', '"-12 GB/s", over', 8, "bandwidth = '-12 GB/s'", "above 0"),
    ('"12 GB/s", over', '"0 GB/s", over', 8, "bandwidth = '0 GB/s'", "above 0"),
    ('"12 GB/s", over', '"1e999 GB/s", over', 8, "bandwidth = '1e999 GB/s'", "valid:"),
    ('"12 GB/s", over', "12, over", 8, "bandwidth = '12'", "like '12 GB/s'"),
    ('"1 us"', '"1 GB/s"', 8, "latency = '1 GB/s'", "like '1 us'"),
    ("oversubscription = 4", "oversubscription = 0.5", 8, "oversubscription = 0.5", "1 or more"),
    ("oversubscription = 4", "oversubscription = inf", 8, "oversubscription = inf", "1 or more"),
    ("oversubscription = 4", "oversubscribed = 4", 8, "did you mean 'oversubscription'", ""),
    (', source = "paper" }', "}", 8, "latency = '1 us'", "unknown source '(none)'"),
    ('"paper" }', '"papers" }', 8, "unknown source 'papers'", "did you mean 'paper'"),
    ('"paper" }', "1979-05-27 }", 8, "unknown source '1979-05-27'", "paper, vendor"),
    ('"paper" }', "[5] }", 8, "unknown source '[5]'", "paper, vendor"),
    ("link = {", "link = 1 # {", 8, "link = 1", "a table, { ... }"),
    ("count = 256", 'count = 256\nlatency = "1 us"', 13, "'latency'", "a key of a memory or a link"),
    ("count = 256", 'count = 256\nplugin = "numa"', 13, "'plugin'", "a key of a sync: put it"),
    ('"supernode"', '"node"', 11, "level 'node' is defined twice", ""),
    ("count = 256", 'count = 256\nparent = "supernod"', 11, "'supernod'", "did you mean 'supernode'"),
    ("count = 256", 'count = 256\nparent = "cpe"', 11, "unknown parent", "supernode"),
    ("count = 256", 'count = 256\nparent = "node"', 11, "unknown parent", "supernode"),
    ('"mpi"', '"mip"', 13, "unknown workers 'mip'", "did you mean 'mpi'"),
    ('"mpi"', '["mpi"]', 13, "unknown workers", "threads"),
    ('plugin = "allreduce", ', "", 15, "a sync needs 'plugin'", ""),
    ('plugin = "allreduce"', "plugin = 3", 15, "plugin = 3", "a string"),
    (
        '"mpi"',
        '"streams"\n[[level]]\nname = "rank"\nworkers = "mpi"',
        15,
        "level 'rank' has processes (workers = \"mpi\") inside level 'node', whose streams belong",
        "valid: processes outside threads or streams",
    ),
    ('"threads"', '"thread"', 20, "unknown workers 'thread'", "did you mean 'threads'"),
    ('memory = [{ space = "ddr3",', "memory = [{", 21, "a memory needs 'space'", ""),
    ("memory = [{", "memory = [3, {", 21, "memory = 3", "a table"),
    ("mesh = [8, 8]", "mesh = [8, 7]", 25, "mesh [8, 7] does not multiply to count 64", ""),
    ("mesh = [8, 8]", "mesh = [8, -8]", 27, "mesh = -8", "a whole number, 1 or more"),
    ("mesh = [8, 8]", "mesh = 64", 27, "mesh = 64", "a list"),
    ("[[level]]", "[level]", 5, "a level begins with [[level]], not with [level]", ""),
    ("memory = [{", "memory = '8 GiB' # ", 21, "memory = '8 GiB'", "a list of tables, [{ ... }]"),
    ("memory = [{", "memory = {} # ", 21, "memory = {}", "a list of tables, [{ ... }]"),
    ('"64 KiB"', '"64 KiBB"', 28, "did you mean 'KiB'", "like '8 GiB'"),
    ('"11.6 GFLOP/s"', '"11.6 GFLOPS"', 29, "did you mean 'GFLOP/s'", "valid:"),
    ('"11.6 GFLOP/s"', '"fast"', 29, "peak = 'fast'", "like '2 GFLOP/s'"),
    ('"11.6 GFLOP/s"', '"2 GFLOP/s (guess)"', 29, "unknown source 'guess'", "assumed"),
    (
        'peak = "11.6 GFLOP/s"',
        'peak = "11.6 GFLOP/s"\nsustained = "0.1 TFLOP/s (paper)"',
        25,
        "level 'cpe': sustained 100 GFLOP/s (paper) is above its peak 11.6 GFLOP/s (assumed)",
        "at most the peak",
    ),
    (
        'peak = "11.6 GFLOP/s"',
        'peak = { f32 = "10 GFLOP/s", bf16 = "20 GFLOP/s" }\n'
        'sustained = { f32 = "9 GFLOP/s", bf16 = "0.1 TFLOP/s" }',
        25,
        "level 'cpe': sustained 100 GFLOP/s (assumed) is above its peak 20 GFLOP/s (assumed) in bf16",
        "at most the peak",
    ),
    (
        'peak = "11.6 GFLOP/s"',
        'sustained = { f32 = "9 GFLOP/s", operations = { convolution = "9 GFLOPS" } }',
        29,
        "sustained: convolution = '9 GFLOPS'",
        "did you mean 'GFLOP/s'",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operation]\nrelu = "9 GFLOP/s"',
        32,
        "sustained: unknown key 'operation'",
        "did you mean 'operations'",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\noperations = 3',
        32,
        "operations = 3",
        "valid: a table of rates by operation",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\nkernels = "sw26010"',
        32,
        "'kernels' is among the rates of [level.sustained]",
        "put it above that line",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operations]\nclock = "1 GHz"',
        33,
        "'clock' is among the rates of [level.sustained.operations]",
        "put it above that line",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operations]\n'
        'relu = "9 GFLOP/s"\n"convolution 3 x 3" = "9 GFLOP/s"',
        34,
        "sustained: 'convolution 3 x 3' does not name an operation",
        "like 'convolution 3x3 of 4'",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operations]\n'
        '"convolution 3x3" = "9 GFLOP/s"\n"convolution 1x1" = { bf16 = "9 GFLOP/s" }',
        34,
        "sustained: convolution 1x1 needs 'f32'",
        "by precision with f32",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\nbf16 = "9 GFLOPS"',
        32,
        "sustained: bf16 = '9 GFLOPS'",
        "did you mean 'GFLOP/s'",
    ),
    (
        'kernels = "sw26010"',
        'sustained.f32 = "9 GFLOP/s"\nsustained.fp16 = "9 GFLOP/s"',
        31,
        "sustained: unknown key 'fp16'",
        "did you mean 'bf16'",
    ),
    (
        'kernels = "sw26010"',
        'features = ["a"]\n[level.sustained.operations]\nrelu = "9 GFLOP/s"',
        31,
        "sustained needs 'f32'",
        "by precision with f32",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operations]\nrelu = "9 GFLOP/s"\n'
        '[level.sustained.operations."convolution 3x3"]\nf32 = "9 GFLOP/s"\nbf16 = "9 GFLOPS"',
        36,
        "sustained: convolution 3x3: bf16 = '9 GFLOPS'",
        "did you mean 'GFLOP/s'",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operations]\nrelu = "9 GFLOP/s"\n'
        '[level.sustained.operations."convolution 3x3"]\nbf16 = "9 GFLOP/s"',
        34,
        "sustained: convolution 3x3 needs 'f32'",
        "by precision with f32",
    ),
    (
        'kernels = "sw26010"',
        'sustained.f32 = "9 GFLOP/s"\nsustained.operations."convolution 3x3" = "9 GFLOP/s"\n'
        'sustained.operations."convolution 1x1".bf16 = "9 GFLOP/s"',
        32,
        "sustained: convolution 1x1 needs 'f32'",
        "by precision with f32",
    ),
    (
        'kernels = "sw26010"',
        '[level.sustained]\nf32 = "9 GFLOP/s"\n[level.sustained.operations]\nsource = "guess"\n'
        'relu = "9 GFLOP/s"',
        34,
        "sustained: relu = '9 GFLOP/s': unknown source 'guess'",
        "valid: assumed, measured, paper, vendor",
    ),
    ('"11.6 GFLOP/s"', '{ f32 = "9 GFLOP/s", operations = {} }', 29, "precision 'operations'", ""),
    ('"11.6 GFLOP/s"', '{ bf16 = "2 GFLOP/s" }', 29, "peak needs 'f32'", "by precision with f32"),
    ('"11.6 GFLOP/s"', "{ f32 = 2 }", 29, "peak: f32 = 2 ", "like '2 GFLOP/s'"),
    ('"11.6 GFLOP/s"', '{ f23 = "2 GFLOP/s" }', 29, "unknown precision 'f23'", "did you mean 'f32'"),
    ('"11.6 GFLOP/s"', '{ f32 = "2 GFLOP/s", source = "me" }', 29, "unknown source 'me'", "vendor"),
    ('"64 KiB"', '{ f32 = "64 KiB" }', 28, "capacity = ", "like '8 GiB'"),
    ("mesh = [8, 8]", "mesh = [8, 8", 28, "array", ""),
    ('"taihulight"', '"taihulight', 2, "", ""),
    ("[[level]]", "[[levels]]", 5, "unknown key 'levels'", "did you mean 'level'"),
    ("[[level]]", "[options]\na = 3\n\n[[level]]", 5, "options", "a table"),
]


@pytest.mark.parametrize(
    ("right", "wrong", "line", "said", "also"), MISTAKES, ids=[m[1][:32] for m in MISTAKES]
)
def test_a_mistake_is_refused_with_its_line_and_what_is_valid(
    tmp_path: Path, right: str, wrong: str, line: int, said: str, also: str
) -> None:
    assert right in TAIHULIGHT
    with pytest.raises(DescriptionError) as caught:
        read(tmp_path, TAIHULIGHT.replace(right, wrong, 1))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'machine.toml'}:{line}: ")
    assert said in message
    assert also in message


def test_lines_are_found_despite_strings_comments_and_options_that_look_like_keys(
    tmp_path: Path,
) -> None:
    text = '''\
schema = 1 # count = 3
name = """
count = 1
"""
[[level]]   # [[level]]
name = "count = 2"
sync = { plugin = "a", count = 3, workers = "x" }
[[level]]
name = 'b'
count = 0
'''
    with pytest.raises(DescriptionError, match=r"machine\.toml:10: count = 0"):
        read(tmp_path, text)


def test_lines_are_found_within_a_list_of_tables(tmp_path: Path) -> None:
    entries = 'memory = [\n  { space = "x", capacity = "1 B", source = "paper" },\n  { '
    text = TAIHULIGHT.replace("memory = [{ ", entries, 1).replace("28 GB/s", "28 GB")
    with pytest.raises(DescriptionError, match=r"machine\.toml:23: bandwidth = '28 GB'"):
        read(tmp_path, text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
@given(level=st.integers(0, 3), position=st.integers(1, 4))
def test_an_unknown_key_is_reported_on_its_line(tmp_path: Path, level: int, position: int) -> None:
    lines = TAIHULIGHT.splitlines()
    start = [number for number, line in enumerate(lines) if line == "[[level]]"][level]
    lines.insert(start + min(position, 3), "coumt = 3")
    number = lines.index("coumt = 3") + 1
    with pytest.raises(DescriptionError, match=rf":{number}: unknown key 'coumt'.*'count'"):
        read(tmp_path, "\n".join(lines))


def test_a_mark_of_byte_order_as_some_editors_write_it_is_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeff" + TAIHULIGHT).levels == read(tmp_path, TAIHULIGHT).levels


def test_a_file_that_is_not_there_is_named_with_the_nearest_that_is(tmp_path: Path) -> None:
    (tmp_path / "laptop.toml").touch()
    wrong = tmp_path / "labtop.toml"
    with pytest.raises(
        DescriptionError, match=r"no such file: .*labtop\.toml; did you .*/laptop\.toml'"
    ):
        load_machine(wrong)
    (tmp_path / "machines").mkdir()
    words = r"no such file: .*; there is no folder '.*/machnes', did you mean '.*/machines'"
    with pytest.raises(DescriptionError, match=words):
        load_machine(tmp_path / "machnes" / "laptop.toml")


@pytest.mark.parametrize("given", [None, ["cpu"], 3, b"laptop.toml"])
def test_what_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(
        DescriptionError, match=f"{re.escape(repr(given))} is not a machine .*valid: 'auto'"
    ):
        load_machine(given)


def test_folders_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="is a folder; a file is needed here: name one in it"):
        load_machine(tmp_path)
    binary = tmp_path / "weights.bin"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(DescriptionError, match=r"weights\.bin:2: "):
        load_machine(binary)
    binary.write_bytes(b"schema = 1\n\0")
    with pytest.raises(DescriptionError, match=r"weights\.bin:2: "):
        load_machine(binary)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(data=st.data())
def test_damage_to_a_description_is_read_or_refused_but_never_breaks_the_reader(
    tmp_path: Path, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(TAIHULIGHT)))
    stop = data.draw(st.integers(start, min(start + 30, len(TAIHULIGHT))))
    inserted = data.draw(st.text('[]{}="\\\n#,1 .ab\0é', max_size=6))
    try:
        machine = read(tmp_path, TAIHULIGHT[:start] + inserted + TAIHULIGHT[stop:])
    except DescriptionError as error:
        assert re.match(rf"{re.escape(str(tmp_path))}/machine\.toml:\d+: .", str(error))
    else:
        assert read(tmp_path, str(machine)) == machine
