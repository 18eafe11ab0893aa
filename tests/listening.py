"""Who a process and its descendants listen to: their sockets, from /proc.

python -m tests.listening RUN.yaml OUTPUT       # trains, and prints every listening socket of launcher and ranks
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from trainer.status import read

UNIX, POLL_S = "unix", 0.02
LISTENING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}  # states: LISTEN; of UDP, not connected
ACCEPTS = 0x10000  # a flag in /proc/net/unix


@dataclass(frozen=True, order=True)
class Socket:
    """A listening socket: `who` is the launcher or a rank; `address` an IP address with its port, or unix."""

    who: str
    address: str

    @property
    def outside(self) -> bool:
        """Whether another host could reach it."""
        return self.address != UNIX and not _address(self.address.rpartition(":")[0]).is_loopback


def _address(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def listening(launcher: int) -> set[Socket]:
    """The listening sockets of a process and its descendants."""
    found = set()
    for pid in descendants(launcher):
        if inodes := _inodes(pid):
            found |= {Socket(_who(pid), address) for inode, address in _open(pid) if inode in inodes}
    return found


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def _who(pid: int) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return "launcher"
    rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", environment)
    return f"rank {int(rank[1])}" if rank else "launcher"


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink())):
                    found.add(match[1])
            except OSError:
                continue
    except OSError:
        pass
    return found


def _open(pid: int) -> Iterator[tuple[str, str]]:
    """(inode, address) of every listening socket of a process's network namespace."""
    for kind, state in LISTENING.items():
        for fields in _lines(pid, kind):
            if fields[3] == state:
                host, _, port = fields[1].partition(":")
                words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
                yield fields[9], f"{ip_address(b''.join(words))}:{int(port, 16)}"
    for fields in _lines(pid, "unix"):
        if int(fields[3], 16) & ACCEPTS:
            yield fields[6], UNIX


def _lines(pid: int, kind: str) -> list[list[str]]:
    try:
        return [line.split() for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]]
    except OSError:
        return []


@dataclass
class Listened:
    """What listened while a command trained, by when: before, during or after step 0 (of rank 0)."""

    when: dict[str, set[Socket]]
    code: int
    said: str

    def sockets(self) -> set[Socket]:
        """Of the whole time."""
        return set().union(*self.when.values())


def watch(process: subprocess.Popen[str], folder: Path) -> Listened:
    """Look at the sockets of a training command, again and again until it ends; its stderr is kept, where it is a pipe
    (and fits one)."""
    when: dict[str, set[Socket]] = {"before": set(), "during": set(), "after": set()}
    try:
        while process.poll() is None:
            first = _when(folder)
            with _held(folder) if first == "during" else nullcontext():
                found = listening(process.pid)
                if first == _when(folder):
                    when[first] |= found
            time.sleep(POLL_S)
    finally:
        process.kill()
        said = process.communicate()[1] or ""
    return Listened(when, process.returncode, said)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Rank 0 stands still meanwhile, so that its step does not end."""
    rank = int((folder / "status" / "rank-0.alive").read_text())
    os.kill(rank, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(rank, signal.SIGCONT)


def _when(folder: Path) -> str:
    try:
        step = read(folder / "status" / "rank-0")[0]
    except OSError:
        return "before"
    return "before" if step < 0 else "after" if step else "during"


RENAMED = """
import ctypes, os, socket, sys
libc, uts, user = ctypes.CDLL(None), 0x04000000, 0x10000000  # a name space of its own for the host's name
if libc.unshare(uts) == 0 or libc.unshare(user | uts) == 0:
    try:
        socket.sethostname(sys.argv[1])
    except OSError:
        pass
os.execvp(sys.argv[2], sys.argv[2:])
"""


def named(name: str, command: list[str]) -> list[str]:
    """The command, on a host of this name where that is allowed (to root, or with user namespaces)."""
    return [sys.executable, "-c", RENAMED, name, *command] if name else command


def outside_address() -> str:
    """An address of this machine that others reach; "" when it has none, or a host cannot be named by it here. (gloo
    resolves the host's name, and a name that is an address resolves to it.)"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        address = str(any_socket.getsockname()[0])
    asked = [sys.executable, "-c", "import socket; print(socket.gethostname())"]
    tried = subprocess.run(named(address, asked), capture_output=True, text=True, check=False)
    return address if tried.stdout.strip() == address else ""


def main(run: str, output: str) -> int:
    """Train and print."""
    command = [sys.executable, "-m", "windtunnel", "train", run, "--output", output]
    found = watch(subprocess.Popen(command, text=True), Path(output))
    for when, sockets in found.when.items():
        print(f"{when} step 0:")
        for one in sorted(sockets):
            print(f"  {one.who:10} {one.address}{'   REACHED FROM OUTSIDE' if one.outside else ''}")
    return found.code or int(any(one.outside for one in found.sockets()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
