"""Keeps the processes of one machine to that machine: which interface is the loopback, and how gloo and NCCL are told.

gloo would listen on the address that the machine's own name resolves to, NCCL on the first network card: both reach
other hosts, and neither asks who connects.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping

from program.errors import InputError

VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""NCCL takes a name as the beginning of names unless `=` comes first."""

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915  # of Linux
_UP, _LOOPBACK = 0x1, 0x8


def loopback_variables(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that bind gloo and NCCL to this machine's loopback, without those that the user has set (`given`,
    by default the environment). Raises InputError where there is no loopback to bind to."""
    given = os.environ if given is None else given
    missing = {name: form for name, form in VARIABLES.items() if not given.get(name)}
    interface = loopback() if missing else ""
    return {name: form.format(interface) for name, form in missing.items()}


def loopback() -> str:
    """The name of the loopback interface, `lo` on most machines. Raises InputError where none is up."""
    names = [name for _, name in socket.if_nameindex()]
    found = [name for name in names if (_is_loopback(name) if sys.platform == "linux" else name.startswith("lo"))]
    if not found:
        raise InputError(
            f"no interface of this machine ({', '.join(names) or 'it has none'}) is a loopback that is up, and ranks on"
            " one machine meet there: `ip link set lo up`, or name an interface in GLOO_SOCKET_IFNAME and"
            " NCCL_SOCKET_IFNAME"
        )
    return found[0]


def _is_loopback(name: str) -> bool:
    """Whether an interface is the loopback and up, and its first address, which gloo would take, is of 127.0.0.0/8
    (hosts that announce an address of their own by BGP have it on `lo` too)."""
    flags = struct.unpack_from("H", _asked(_SIOCGIFFLAGS, name) or bytes(18), 16)[0]
    address = _asked(_SIOCGIFADDR, name)  # none: it has IPv6 addresses only
    return flags & (_UP | _LOOPBACK) == _UP | _LOOPBACK and (address is None or address[20] == 127)


def _asked(question: int, name: str) -> bytes | None:
    from fcntl import ioctl  # not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return ioctl(any_socket, question, struct.pack("16s24x", name.encode()))
        except OSError:
            return None
