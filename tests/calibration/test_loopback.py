"""Which interface the ranks of one machine are bound to."""

import socket
import struct

import pytest

from calibration import loopback
from program.errors import InputError


def _machine(monkeypatch: pytest.MonkeyPatch, **interfaces: tuple[int, str]) -> None:
    """A machine whose interfaces have these flags and first addresses."""
    monkeypatch.setattr(loopback.sys, "platform", "linux")
    monkeypatch.setattr(loopback.socket, "if_nameindex", lambda: list(enumerate(interfaces, 1)))

    def asked(question: int, name: str) -> bytes | None:
        flags, address = interfaces[name]
        if question == loopback._SIOCGIFFLAGS:
            return struct.pack("16sH22x", name.encode(), flags)
        return struct.pack("16sHH4s16x", name.encode(), 2, 0, socket.inet_aton(address)) if address else None

    monkeypatch.setattr(loopback, "_asked", asked)


def test_this_machine_s_loopback_is_found_and_named_to_both() -> None:
    name = loopback.loopback()
    assert loopback.loopback_variables({}) == {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(loopback.loopback_variables({"NCCL_SOCKET_IFNAME": "eth0"})) == {"GLOO_SOCKET_IFNAME"}
    _machine(monkeypatch)
    assert loopback.loopback_variables({"GLOO_SOCKET_IFNAME": "a", "NCCL_SOCKET_IFNAME": "b"}) == {}


def test_it_is_known_by_its_flag_and_address_and_not_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    up, loop, card = 0x1, 0x8, (0x1003, "10.0.0.5")
    _machine(monkeypatch, lo=(0x1003, "10.0.0.6"), eth0=card, loop7=(up | loop, "127.0.0.1"))
    assert loopback.loopback() == "loop7"
    _machine(monkeypatch, eth0=card, lo=(up | loop, ""))  # ::1 alone
    assert loopback.loopback() == "lo"


@pytest.mark.parametrize("lo", [(0x8, "127.0.0.1"), (0x9, "10.9.0.1")])
def test_a_loopback_that_is_down_or_leads_outside_is_refused(
    lo: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, lo=lo, eth0=(0x1003, "10.0.0.5"))
    with pytest.raises(InputError, match="no interface of this machine .lo, eth0. is a loopback that is up"):
        loopback.loopback()
