"""The programs in docs/ besides the plugin guide's run as they stand."""

import ctypes
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from remote_memory import Giver, Remote, kernels_inside

import demitasse

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        ("testing_plugins.md", "synchronisation: as one worker"),
        ("embedding.md", "ModelError: no such file: solvr.prototxt; did you mean 'solver.prototxt'?"),
    ],
)
def test_its_program_runs(guide, said, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text("utf-8"), flags=re.DOTALL)
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert said in run.stdout.splitlines()


@pytest.mark.parametrize(("status", "queued"), [(143, ["requeue 4711"]), (0, []), (2, [])])
def test_the_batch_script_queues_a_job_again_that_was_stopped_and_only_that(tmp_path, status, queued):
    (script,) = re.findall(
        r"```\n(#!/bin/sh\n.*?)```", (DOCS / "cluster.md").read_text("utf-8"), flags=re.DOTALL
    )
    told = tmp_path / "told"
    for name, end in (("srun", f"exit {status}"), ("scontrol", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {told}-{name}\n{end}\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    slurm = {"PATH": path, "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "3"}
    done = subprocess.run(["/bin/sh", "-c", script], env=slurm, check=False, timeout=30)
    assert done.returncode == status
    ran = Path(f"{told}-srun").read_text().splitlines()
    assert ran == ["demitasse train SOLVER --resume auto --json run-3.json"]
    asked = Path(f"{told}-scontrol")
    assert (asked.read_text().splitlines() if asked.exists() else []) == queued


KIT = re.findall(
    r"```python\n(.*?)```", (DOCS / "testing_plugins.md").read_text("utf-8"), flags=re.DOTALL
)


@pytest.fixture
def kit():
    """What the guide to testing defines, before it tries it."""
    names = {}
    exec(KIT[0].partition("\nprint(")[0], names)
    return SimpleNamespace(**names)


def scribble(array, at):
    """Write to an element beside an array."""
    address = array.ctypes.data + at
    ctypes.memset(address, 0, 1)


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda x, y, right: y.fill(np.nan), "an output is not finite"),
        (lambda x, y, right: y[:1].fill(0), "an output is not finite"),  # the rest is not written
        (lambda x, y, right: (right(), scribble(y, y.nbytes)), "writes beside an array"),
        (lambda x, y, right: (right(), scribble(y, -1)), "writes beside an array"),
        (lambda x, y, right: (right(), x.fill(0)), "writes to an input"),
        (lambda x, y, right: np.copyto(y, x), "Not equal to tolerance"),
    ],
    ids=["NaN", "not all", "behind", "before", "input", "wrong"],
)
def test_the_kit_finds_a_wrong_kernel(kit, work, told):
    def kernels(request):
        def bind(inputs, outputs, workspace):
            right = kit.forward(inputs, outputs, workspace)
            return lambda: work(inputs[0], outputs[0], right)

        offered = [demitasse.Candidate("right", kit.forward), demitasse.Candidate("odd", bind)]
        backward = [demitasse.Candidate("back", kit.backward)]
        return {"mish": offered, "mish_backward": backward}.get(request.operation.name, [])

    kit.Mish.kernels = staticmethod(demitasse.hookimpl(kernels))
    layer = 'layer { name: "m" type: "Mish" bottom: "x" top: "y" }'
    with pytest.raises(AssertionError, match=told):
        kit.check_kernels(kit.PLUGINS, "mish", layer, (2, 5))


@pytest.mark.parametrize("precision", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("plain", [True, False])
def test_the_kit_asks_for_kernels_as_a_plan_of_a_precision_does(kit, precision, plain):
    """A workspace for a tensor as it lies is half of what it takes as it is given, in bf16."""

    def forward(inputs, outputs, workspace):
        (x,), (y,) = inputs, outputs
        between = workspace.view(x.dtype).reshape(x.shape)
        right = kit.forward(inputs, [between], None)

        def work():
            right()
            y[...] = between

        return work

    def kernels(request):
        x = request.inputs[-1].plain if plain else request.inputs[-1]
        offered = [demitasse.Candidate("in its workspace", forward, workspace=x.nbytes)]
        backward = [demitasse.Candidate("back", kit.backward)]
        return {"mish": offered, "mish_backward": backward}.get(request.operation.name, [])

    kit.Mish.kernels = staticmethod(demitasse.hookimpl(kernels))
    layer = 'layer { name: "m" type: "Mish" bottom: "w" top: "y" }'
    layers = f'layer {{ name: "r" type: "ReLU" bottom: "x" top: "w" }} {layer}'
    if plain or precision != "bf16":
        assert len(kit.check_kernels(kit.PLUGINS, "mish", layers, (2, 5), precision=precision)) == 2
        return
    with pytest.raises(ValueError, match="cannot reshape array"):
        kit.check_kernels(kit.PLUGINS, "mish", layers, (2, 5), precision=precision)


class Npu:
    """A device: memory that a host does not address, and the reference's kernels in it; ``odd`` updates
    nothing."""

    manifest = {
        "name": "npu",
        "api": ">=0.1,<0.2",
        "roles": {"allocator": {"spaces": ["npu:*"]}, "kernels": {"spaces": ["npu"]}},
    }

    def __init__(self, odd=None):
        self.odd = odd

    @demitasse.hookimpl
    def allocator(self, space):
        return Giver(space)

    @demitasse.hookimpl
    def kernels(self, request):
        found = kernels_inside(request)
        if self.odd and request.operation.name == "accumulate":
            return [replace(each, bind=lambda inputs, *others: lambda: None) for each in found]
        return found


MEMORY = demitasse.MemorySpace("npu", at="npu:*")
BOARD = demitasse.Machine("board", (demitasse.Level("npu", memory=(MEMORY,)),), fingerprint="any")
NORMALISED = 'layer { name: "n" type: "LRN" bottom: "x" top: "y" lrn_param { alpha: 0.1 } }'
SHARED = (
    'layer { name: "p" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }'
)


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_the_kit_tries_kernels_in_a_devices_memory_with_values_that_belong_together(kit, precision):
    plugins = ["caffe", "training", "reference", Npu()]
    tried = kit.check_kernels(plugins, "npu", NORMALISED, (2, 6, 3, 4), hw=BOARD, precision=precision)
    assert [each.partition(" of ")[2] for each in tried] == [
        "lrn_across_channels",
        "lrn_across_channels_backward",
    ]


def test_the_kit_compares_what_a_kernel_updates(kit):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        kit.check_kernels(
            ["caffe", "training", "reference", Npu("odd")], "npu", SHARED, (2, 3), hw=BOARD
        )


def test_the_kit_tries_arrays_of_a_device(kit):
    class Wrong(Remote):
        def __setitem__(self, part, value):
            if isinstance(value, np.ndarray):
                self.inside[part] = 3
            else:
                super().__setitem__(part, value)

    class Counted(Giver):
        def allocate(self, nbytes):
            if nbytes > 1 << 40:
                raise MemoryError(f"{nbytes} bytes were asked for")
            self.allocations, self.bytes = self.allocations + 1, self.bytes + nbytes
            return super().allocate(nbytes)

    with pytest.raises(AssertionError, match="Arrays are not equal"):
        kit.check_allocator(Counted("npu:0", Wrong))
    kit.check_allocator(Counted("npu:0"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda nbytes: demitasse.HostMemory(np.full(nbytes, 255, np.uint8)), "is not zero"),
        (lambda nbytes: demitasse.HostMemory(demitasse.zeroed(nbytes // 2)), "were asked for"),
        (lambda nbytes: demitasse.HostMemory(demitasse.zeroed(nbytes + 1)[1:]), "not aligned"),
        (
            lambda nbytes: demitasse.HostMemory(demitasse.zeroed(min(nbytes, 200_000))),
            "bytes were given",
        ),
    ],
    ids=["not zero", "too small", "not aligned", "without end"],
)
def test_the_kit_finds_a_wrong_allocator(kit, given, told):
    class Odd:
        allocations = bytes = 0

        def allocate(self, nbytes):
            self.allocations, self.bytes = self.allocations + 1, self.bytes + nbytes
            return given(nbytes)

    with pytest.raises(AssertionError, match=told):
        kit.check_allocator(Odd())


FIVE = re.findall(r"```python\n(.*?)```", (DOCS / "five_plugins.md").read_text("utf-8"), flags=re.DOTALL)
SAID = (
    "a tenth of the gradients trains as well",
    "turned and rectified",
    "goes on at its sample",
    "npu.toml:6: options.npu: clock = '2 GB/s' (valid: a number above 0 with its unit, like '3 GHz')",
    "summed along two trees, and timed",
)


@pytest.mark.parametrize(("program", "said"), [*zip(FIVE, SAID, strict=True)], ids=range(5))
def test_each_of_the_five_plugins_runs(program, said, tmp_path):
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == said


def test_the_first_of_the_five_runs_among_processes_too(tmp_path):
    launcher = Path(sys.executable).with_name("mpiexec")
    if not launcher.exists():
        pytest.skip("processes need the mpich wheel's mpiexec beside this Python")
    (tmp_path / "topk.py").write_text(FIVE[0], "utf-8")
    command = [str(launcher), "-n", "2", sys.executable, "topk.py", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(SAID[0]) == 2, run.stdout  # whatever else a launcher says between them


@pytest.mark.parametrize("guide", sorted(path.name for path in DOCS.glob("*.md")))
def test_its_links_lead_somewhere(guide):
    text = re.sub(r"```.*?```", "", (DOCS / guide).read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert [target for target in targets if not (DOCS / target).exists()] == []
