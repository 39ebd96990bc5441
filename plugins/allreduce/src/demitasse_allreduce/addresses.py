"""The addresses at which other processes may reach this one. All of them are listed, because host names
need not resolve, and only the caller can find out which address it has a route to."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"


def machine() -> str:
    """Return a text that identifies this machine's running kernel, whatever its hosts are called."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text(encoding="utf-8").strip() if file.exists() else socket.gethostname()


def network() -> str:
    """Return a text that identifies this process's network. One machine may have several isolated
    networks (namespaces), in which 127.0.0.1 leads to different processes."""
    file = Path("/proc/self/ns/net")
    with contextlib.suppress(OSError):
        return f"{machine()} {file.stat().st_ino}"
    return machine()


def addresses() -> list[str]:
    """Return this host's addresses except loopback ones, IPv4 before IPv6; empty if it has none."""
    found = dict.fromkeys([*_of_interfaces(), *_of_routes(), *_of_name(), *_of_ipv6_interfaces()])
    kept = [address for address in found if not address.startswith("127.") and address != "::1"]
    return sorted(kept, key=lambda address: ":" in address)


def listen(everywhere: bool) -> socket.socket:
    """Return a socket that listens at a free port, either on every address or on loopback only. Raises
    OSError if sockets are not allowed."""
    if not everywhere:
        return socket.create_server((LOOPBACK, 0), backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=128)


def _of_interfaces() -> list[str]:
    """Return the first IPv4 address of each interface, which Linux lists without a name or a route."""
    try:
        import fcntl
    except ImportError:
        return []
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # one that has no IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _of_ipv6_interfaces() -> list[str]:
    """Return the global IPv6 addresses, which Linux lists in a file. Link-local ones are left out,
    because they can only be used with a scope."""
    file = Path("/proc/net/if_inet6")
    found = []
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            digits, _, _, scope, *_ = line.split()
            if scope == "00":
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def _of_routes() -> list[str]:
    """Return the source address that packets to the outside would have; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("198.51.100.1", 9))
        return [asking.getsockname()[0]]
    return []


def _of_name() -> list[str]:
    with contextlib.suppress(OSError):
        known = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in known if "%" not in str(entry[4][0])]
    return []
