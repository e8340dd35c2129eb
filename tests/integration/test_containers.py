"""A proxy in a container of Docker, podman or LXC, or in a nested one: caps hold there, also after its restart."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from both_ways import NETWORKS, begin_both, wait_held
from engines import ENGINES, Engine, Machine, machine, missing
from proxy_world import EXECUTABLES, Hosts, ProxyWorld, attended, unique
from second_interface import send_small_pulses

from mptcp_lab.origin import start_origin
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Topology, build

if TYPE_CHECKING:
    from mptcp_lab.process import Process

UNIT: Final = Path(__file__).parents[2] / "systemd/mptcp-throttle-namespace.service"
TOPOLOGY: Final = Topology(clients=(ClientSpec(families=(4,)),))


def follow(beside: Machine, config: Path) -> Process:
    """With the capabilities of its unit."""
    (named,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    bounding = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in named.split())])
    program = EXECUTABLES / "mptcp-throttle-namespace", "--config", config
    follower = beside.start(unique("follow"), "setpriv", "--no-new-privs", f"--bounding-set={bounding}", *program)
    follower.wait_until(lambda: "its network namespace is at" in follower.log_text(), "keeping the namespace")
    return follower


def findings(beside: Machine, config: Path) -> dict[str, object]:
    command = EXECUTABLES / "mptcp-throttle", "--config", config, "doctor", "--json"
    document = json.loads(beside.run(*command, check=False).stdout)
    return {finding["subject"]: finding["problem"] or finding["remark"] for finding in document["findings"]}


@pytest.mark.parametrize("kind", ENGINES)
def test_caps_hold_for_a_proxy_in_a_container_and_after_its_restart(kind: type[Engine]) -> None:
    absent = missing(kind)
    if absent is not None:
        pytest.skip(f"{absent} is not installed; `lab/bootstrap --containers` installs it")
    with build(TOPOLOGY) as lab, machine(lab) as beside:
        engine, origin, inside = kind(beside), start_origin(lab.origin), beside.inside()
        engine.start()
        on = Hosts(replace(lab, proxy=inside), origin)
        services = Services(inside, NETWORKS)
        send_small_pulses(lab.client)
        # The services do not see the mounts of the machine, and so not the path of the namespace in which they are.
        config = with_namespace(services, engine.source)
        follower = follow(beside, config)
        world = ProxyWorld(on.lab, origin, services)
        check_capped(world)
        found = findings(beside, config)
        assert found["network namespace"] == f"that of {engine.source}"
        assert found["interface"] is None
        assert found["proxy port 8080"] is None
        engine.end()
        assert follower.wait(10.0) == 0
        ended = str(findings(beside, config)["network namespace"])
        assert ended.endswith(": the other findings are about the network of this host")
        engine.start_again()
        services.stop()
        assert services.exit_statuses == (0, 0)
        world.abort()
        follower = follow(beside, config)
        with attended(on, services) as world:
            check_capped(world)
        follower.stop()


def with_namespace(services: Services, source: str) -> Path:
    """A configuration file beside that of the services, which names the namespace."""
    text = services.config.read_text(encoding="utf-8")
    path = services.config.with_name("with-namespace.yaml")
    path.write_text(text.replace("proxy:\n", f"proxy:\n  namespace: {source}\n", 1), encoding="utf-8")
    return path


def check_capped(world: ProxyWorld) -> None:
    world.services.start_sniffer()
    world.services.start_daemon()
    world.services.wait_ready()
    begin_both(world, world.lab.client)
    assert world.services.status()["daemon"]["classifier"] == "socket"
    wait_held(world.lab.client)
