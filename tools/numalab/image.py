"""The guest's initial file system: a busybox, the modules, and the script that starts and ends a run."""

from __future__ import annotations

import gzip
from pathlib import Path

from numalab.kernel import Kernel

RESULTS = "/run/numalab"
"""Where the guest mounts the folder that it shares with the host and can write to."""

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /host
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
fail() { echo "numalab: $1" > /dev/console; poweroff -f; }
@MODULES@
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /host \\
    || fail "the host's files cannot be mounted"
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mount -t devtmpfs dev /host/dev
mkdir -p /host/dev/shm /host/dev/pts
mount -t tmpfs shm /host/dev/shm
mount -t tmpfs run /host/run || fail "/run cannot be mounted"
mkdir -p /host@RESULTS@ /host/run/tmp /host/run/home
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 results /host@RESULTS@ \\
    || fail "the folder for results cannot be mounted"
@CPUSET@
echo booted > /host@RESULTS@/state
ip link set lo up 2> /dev/null
chroot /host /bin/sh @RESULTS@/command > /host@RESULTS@/output 2>&1
echo $? > /host@RESULTS@/status
sync
poweroff -f
"""

CPUSET = """\
mount -t cgroup2 none /host/sys/fs/cgroup || fail "control groups cannot be mounted"
echo +cpuset > /host/sys/fs/cgroup/cgroup.subtree_control || fail "there is no cpuset controller"
mkdir /host/sys/fs/cgroup/lab
@LIMITS@
echo $$ > /host/sys/fs/cgroup/lab/cgroup.procs || fail "the cpuset takes no process"
"""


def script(modules: tuple[str, ...], cpus: str = "", mems: str = "") -> str:
    """Return the guest's ``/init``. ``cpus`` and ``mems``, in the kernel's list format, set a cpuset."""
    limits = [
        f'echo {value} > /host/sys/fs/cgroup/lab/cpuset.{key} || fail "cpuset.{key} = {value}"'
        for key, value in (("cpus", cpus), ("mems", mems))
        if value
    ]
    loads = "\n".join(
        f'insmod /modules/{name} || fail "module {name} does not load"' for name in modules
    )
    made = INIT.replace("@MODULES@", loads)
    made = made.replace("@CPUSET@", CPUSET.replace("@LIMITS@", "\n".join(limits)) if limits else "")
    return made.replace("@RESULTS@", RESULTS)


def write(path: Path, kernel: Kernel, busybox: Path, cpus: str = "", mems: str = "") -> None:
    """Write the image: a gzipped cpio archive in the format that Linux unpacks ("newc")."""
    folders = ("bin", "modules", "proc", "sys", "dev", "host")
    members = [(name, 0o040755, b"") for name in folders]
    members.append(("bin/busybox", 0o100755, busybox.read_bytes()))
    members += [(f"modules/{each.name}", 0o100644, each.read_bytes()) for each in kernel.modules]
    names = tuple(each.name for each in kernel.modules)
    members.append(("init", 0o100755, script(names, cpus, mems).encode()))
    with gzip.open(path, "wb", compresslevel=1) as out:
        for number, (name, mode, content) in enumerate(members, 1):
            out.write(_member(number, name, mode, content))
        out.write(_member(0, "TRAILER!!!", 0, b""))


def _member(number: int, name: str, mode: int, content: bytes) -> bytes:
    # Magic, then 13 hexadecimal fields: inode, mode, user, group, links, time, size, devices, name, sum.
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % each for each in fields) + name.encode() + b"\0"
    return _whole_words(head) + _whole_words(content)


def _whole_words(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
