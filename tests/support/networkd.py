"""systemd-networkd in a host of the lab, with a D-Bus daemon for networkctl(1), as in a container."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from polling import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mptcp_lab.host import Host

# Without a writable /sys, it does not wait for udev. Both programs need files in /run, of their own.
_BEGIN: Final = """
mount -o remount,bind,ro /sys
mount -t tmpfs none /run
mkdir -p /run/systemd/network /run/systemd/netif /run/dbus
chown systemd-network: /run/systemd/netif
cp "$1" /run/systemd/network/
exec dbus-daemon --system --nofork --nopidfile
"""
_HAS_BUS: Final = ("test", "-e", "/run/dbus/system_bus_socket")
_NETWORKD: Final = "/lib/systemd/systemd-networkd"


@contextmanager
def networkd(host: Host, interface: str, settings: str) -> Iterator[Callable[..., str]]:
    """It manages the interface inside the block, with these settings; calls networkctl(1)."""
    file = host.directory / f"{interface}.network"
    file.write_text(f"[Match]\nName={interface}\n{settings}", encoding="ascii")
    bus = host.start("dbus-daemon", "unshare", "--mount", "sh", "-ec", _BEGIN, "sh", file)
    inside = ("nsenter", f"--mount=/proc/{bus.pid}/ns/mnt")
    eventually(lambda: host.run(*inside, *_HAS_BUS, check=False).returncode == 0, "the bus")
    manager = host.start("systemd-networkd", *inside, _NETWORKD)

    def networkctl(*arguments: str) -> str:
        return host.run(*inside, "networkctl", "--no-pager", *arguments).stdout

    def is_configured() -> bool:
        shown = host.run(*inside, "networkctl", "--no-pager", "list", interface, check=False).stdout
        return " configured" in shown

    try:
        eventually(is_configured, "configured", seen=manager.log_text)
        yield networkctl
    finally:
        manager.stop()
        bus.stop()
