"""The sockets of a local cluster that listen, as the kernel lists them."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bk_core.bookie.local_cluster import LocalCluster

_LISTEN = "0A"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Words of 32 bits in the machine's order."""
    raw = bytes.fromhex(text)
    words = [raw[at : at + 4] for at in range(0, len(raw), 4)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(packed)
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def listening() -> dict[str, tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Address and port of all listening sockets, by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net", name)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == _LISTEN:
                address, _, port = fields[1].rpartition(":")
                found[fields[9]] = (_address(address), int(port, 16))
    return found


def children() -> list[int]:
    """Processes below this one, of whatever depth."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue  # it has ended
    found, wave = [], [os.getpid()]
    while wave:
        wave = [pid for pid, parent in parents.items() if parent in wave]
        found += wave
    return found


def sockets_of(pid: int) -> set[str]:
    """Inodes."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return inodes


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_everything_listens_on_loopback_only(cluster: LocalCluster) -> None:
    """ZooKeeper and the bookies, Apache's too, which listen on all interfaces unless they are told."""
    known = listening()
    found = [known[inode] for pid in children() for inode in sockets_of(pid) if inode in known]
    ports = {port for _, port in found}
    wanted = {int(bookie.rpartition(":")[2]) for bookie in cluster.bookie_ids} | {int(cluster.uri.split("/")[2].rpartition(":")[2])}
    assert wanted <= ports
    assert [f"{address}:{port}" for address, port in found if not address.is_loopback] == []
