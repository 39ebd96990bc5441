"""The lab's own parts: a guest's shape, its first file system, its command, its plain errors."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numalab import LabError, LabUnavailableError, image, missing
from numalab.guest import Outcome, arguments, command_file
from numalab.kernel import Kernel, kernel
from numalab.shape import Shape


def test_a_shape_gives_each_domain_its_processors_and_memory() -> None:
    words = Shape(domains=2, cpus=2, memory=300, memory_only=1, memory_only_size=64).arguments()
    text = " ".join(words)
    assert "-m 664M -smp 4,sockets=2,cores=2,threads=1" in text
    assert "-numa node,nodeid=1,cpus=2-3,memdev=m1" in text
    assert "-numa node,nodeid=2,memdev=m2" in text
    assert "dist,src=0,dst=2,val=17" in text
    assert "dist,src=1,dst=2,val=20" in text
    assert text.count("dist,src") == 9


@pytest.mark.parametrize(
    "about", [{"domains": 0}, {"cpus": 0}, {"memory": 64}, {"cpus": 3, "threads": 2}]
)
def test_shapes_that_no_machine_has_are_refused(about: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"domains|memory|MiB|threads"):
        Shape(**about)


def test_the_image_is_an_archive_that_cpio_reads(tmp_path: Path) -> None:
    module, busybox = tmp_path / "9p.ko", tmp_path / "busybox"
    module.write_bytes(b"module")
    busybox.write_bytes(b"box")
    image.write(tmp_path / "initial", Kernel(tmp_path / "vmlinuz", (module,)), busybox, cpus="1-2")
    content = gzip.decompress((tmp_path / "initial").read_bytes())
    names, at = [], 0
    while True:
        assert content[at : at + 6] == b"070701"
        fields = [int(content[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        size, length = fields[6], fields[11]
        name = content[at + 110 : at + 109 + length].decode()
        if name == "TRAILER!!!":
            break
        names.append(name)
        start = -(-(at + 110 + length) // 4) * 4
        if name == "init":
            script = content[start : start + size].decode()
        at = -(-(start + size) // 4) * 4
    assert names == [
        "bin",
        "modules",
        "proc",
        "sys",
        "dev",
        "host",
        "bin/busybox",
        "modules/9p.ko",
        "init",
    ]
    assert "insmod /modules/9p.ko" in script
    assert "echo 1-2 > /host/sys/fs/cgroup/lab/cpuset.cpus" in script
    assert "@" not in script.replace("$@", "")


def test_commands_are_quoted_for_the_guests_shell(tmp_path: Path) -> None:
    text = command_file(["echo", "a b", "$HOME"], tmp_path, {"MINE": "x y"})
    assert "export MINE='x y'" in text
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "a b $HOME\n"


def test_the_hosts_files_are_shared_read_only(tmp_path: Path) -> None:
    words = " ".join(arguments(Shape(2), tmp_path / "vmlinuz", tmp_path / "initial", tmp_path))
    assert "id=root,path=/,security_model=none,multidevs=remap,readonly=on" in words
    assert "-accel tcg" in words


def test_a_program_that_failed_is_told_with_its_last_words(tmp_path: Path) -> None:
    outcome = Outcome(3, "first\nlast words\n", 1.0, 2.0, tmp_path)
    with pytest.raises(LabError, match="status 3 in the guest; it said:\nfirst\nlast words"):
        outcome.checked()
    with pytest.raises(LabError, match=r"left no result\.json"):
        outcome.json()


def test_what_is_missing_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    if sys.platform == "linux":
        assert "apt-get install" in (missing() or "") or "x86-64" in (missing() or "")
    monkeypatch.setenv("NUMALAB_CACHE", str(tmp_path))
    with pytest.raises(LabUnavailableError, match="apt-get is not here"):
        kernel()
    with pytest.raises(LabUnavailableError, match="--fetch"):
        kernel(download=False)
    (tmp_path / "kernel").mkdir()
    with pytest.raises(LabUnavailableError, match="has no boot/vmlinuz"):
        kernel()
