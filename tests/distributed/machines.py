"""Machines with addresses of their own: network namespaces on a bridge, and a launcher that enters them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mpi_run import Mpi

NETWORK = "10.77.13"
HOME = f"{NETWORK}.254"
LAUNCHER = """#!/bin/sh
# As ssh: options, a host, and a command line for its shell.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec {prefix}${host##*.} sh -c "$*"
"""


class Machines(NamedTuple):
    """Machines, each of which can reach all others and this one only by TCP."""

    prefix: str
    addresses: list[str]
    launcher: Path

    def options(self, mpi: Mpi) -> tuple[str, ...]:
        """Options of mpiexec, for one rank on each machine."""
        if mpi.name == "mpich":
            launcher = ("-launcher", "ssh", "-launcher-exec", str(self.launcher))
            return (*launcher, "-localhost", HOME, "-hosts", ",".join(self.addresses))
        network, hosts = f"{NETWORK}.0/24", ",".join(f"{address}:1" for address in self.addresses)
        daemons = ("--prtemca", "plm_ssh_agent", str(self.launcher), "--prtemca", "prte_if_include", network)
        tcp = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", network)
        return (*daemons, *tcp, "--host", hosts)

    def plug(self, number: int, state: str) -> None:
        """Takes a machine off the network (``"down"``), or back (``"up"``)."""
        _ip("link", "set", f"{self.prefix}v{number}", state)


TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
"""For MPICH: the machines have one memory, which it would use instead of their network."""


@contextlib.contextmanager
def machines(count: int, folder: Path) -> Iterator[Machines]:
    """Makes machines for the time of a block; skips the test if that needs more rights."""
    if shutil.which("ip") is None:
        pytest.skip("needs ip, of iproute2")
    prefix = f"bn{os.getpid() % 100000}m"
    launcher = folder / "launcher"
    launcher.write_text(LAUNCHER.replace("{prefix}", prefix), encoding="utf-8")
    launcher.chmod(0o755)
    bridge = f"{prefix}b"
    with contextlib.ExitStack() as stack:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            stack.callback(_ip, "link", "delete", bridge)
            _ip("address", "add", f"{HOME}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number in range(1, count + 1):
                _ip("netns", "add", f"{prefix}{number}")
                stack.callback(_ip, "netns", "delete", f"{prefix}{number}")
                _connect(prefix, number, bridge)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs permission to make network namespaces: {error.stderr.strip()}")
        yield Machines(prefix, [f"{NETWORK}.{number}" for number in range(1, count + 1)], launcher)


def _connect(prefix: str, number: int, bridge: str) -> None:
    namespace, port = f"{prefix}{number}", f"{prefix}v{number}"
    _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _ip("link", "set", port, "master", bridge, "up")
    _ip("-n", namespace, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _ip("-n", namespace, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
