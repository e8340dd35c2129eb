"""Services that enter the network namespace of the proxy (`proxy.namespace`), by our units under a real systemd."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from booted import CLEAN_UP, DAEMON, NAMESPACE, SYSTEMD, Booted
from namespace_containers import add_container, remove_container, start_container
from polling import eventually
from proxy_world import ProxyWorld, receive_rates

from mptcp_lab import namespaces
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.origin import PORT as ORIGIN_PORT
from mptcp_lab.origin import start_origin
from mptcp_lab.process import run
from mptcp_lab.squid import SQUID
from mptcp_lab.topology import ClientSpec, Lab, Topology, build
from mptcp_throttle.network_namespace import KEPT_AT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host

TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,)),))
SERVICES: Final = ("mptcp-sniffer", DAEMON)
PATH: Final = "/run/netns/squid"
# $1: the network namespace; what follows enters where systemd runs.
SHOW: Final = f"""\
exec 3<"$1"
shift
exec "$@" sh -ec 'mkdir -p /run/netns && touch {PATH} && mount --bind /proc/self/fd/3 {PATH}'
"""


def show(services: Booted, container: Host) -> None:
    """Give the namespace of the container its path beside systemd."""
    run(["sh", "-c", SHOW, "sh", namespaces.path(container.namespace), *services.enter])


def start_squid(lab: Lab, container: Host) -> None:
    SQUID.start(container, f"{lab.origin_address(4)}:{ORIGIN_PORT}")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with build(TOPOLOGY) as made:
        yield made


@pytest.fixture
def container(lab: Lab) -> Iterator[Host]:
    made = add_container(lab)
    start_squid(lab, made)
    yield made
    made.stop()


@pytest.fixture
def services(lab: Lab) -> Iterator[Booted]:
    """Not started, with the drop-ins of docs/howto/containers.md."""
    booted = Booted(lab.proxy, "booted")
    booted.configure_section("proxy", namespace=PATH)
    drop_in = (SYSTEMD / "mptcp-throttled.service.d/namespace.conf").read_text()
    for name in (*SERVICES, CLEAN_UP):
        (booted.root / f"units/{name}.service.d").mkdir()
        (booted.root / f"units/{name}.service.d/namespace.conf").write_text(drop_in)
    booted.systemctl("daemon-reload")
    yield booted
    booted.stop()


def end_container(lab: Lab, container: Host, services: Booted) -> None:
    run([*services.enter, "umount", PATH])
    remove_container(lab, container)


def stop_unit(_lab: Lab, _container: Host, services: Booted) -> None:
    services.systemctl("stop", NAMESPACE)
    run([*services.enter, "test", "!", "-e", str(KEPT_AT)])


def test_services_throttle_in_the_namespace_of_the_proxy_and_follow_it(
    lab: Lab, container: Host, services: Booted
) -> None:
    untouched = kernel_state(lab.proxy)
    world = ProxyWorld(replace(lab, proxy=container), start_origin(lab.origin), services)
    services.systemctl("start", "--no-block", NAMESPACE)
    for end in (end_container, stop_unit):
        assert services.systemctl("is-active", NAMESPACE, *SERVICES).split() == ["activating", "inactive", "inactive"]
        before = kernel_state(container)
        show(services, container)
        eventually(lambda: services.answers(services.sockets.daemon), "started")
        world.begin_settled()
        assert 0.5e6 < receive_rates(lab.client, 2.0)["eth0"] < 1.5e6
        assert kernel_state(lab.proxy) == untouched
        end(lab, container, services)
        eventually(lambda: services.systemctl("is-active", *SERVICES, CLEAN_UP).split() == ["inactive"] * 3, "ended")
        assert services.systemctl("--failed", "--no-legend") == ""
        assert services.kept_links == 0
        world.abort()
        if end is end_container:
            start_container(lab, container)
            start_squid(lab, container)
    assert kernel_state(container) == before
