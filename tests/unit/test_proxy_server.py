"""What the lab starts as a server, and how curl reaches the origin server through it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mptcp_lab.proxy_server import Access, ProxyServer, Site
from mptcp_lab.scenario.files import load
from mptcp_lab.servers import ServerKind
from mptcp_throttle.errors import ConfigError

if TYPE_CHECKING:
    from mptcp_lab.scenario.files import Experiment

HEAD = """\
title: a server
duration: 10s
links:
  one: {ends: [proxy.eth0, ue.eth0, origin.eth0]}
  two: {ends: [proxy.eth1, ue.eth1]}
report: {}
"""
HOSTS = "hosts: {proxy: {server: %s}, ue: {}, origin: {run: [origin]}}\n"


def loaded(directory: Path, text: str) -> Experiment:
    path = directory / "x.yaml"
    path.write_text(HEAD + text)
    (experiment,) = load("servers/x", path)
    return experiment


def problem(directory: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, text)
    (found,) = caught.value.problems
    return found.rpartition("yaml")[2].partition(": ")[2]


@pytest.mark.parametrize("kind", ServerKind)
def test_server_listens_on_the_port_and_knows_its_upstream(kind: ServerKind, tmp_path: Path) -> None:
    server = kind.program
    site = Site(tmp_path / "x.conf", "10.3.0.2:80")
    told = server.configuration(site) + " ".join(map(str, server.command(site)))
    assert "8080" in told
    assert ("10.3.0.2:80" in told) is (server.access is Access.REVERSE)
    assert server.name == kind


def test_client_program_speaks_mptcp_to_the_server(tmp_path: Path) -> None:
    client = ServerKind.SHADOWSOCKS_RUST.program.client
    assert client is not None
    told = json.loads(client.configuration(Site(tmp_path / "x.conf", "[fd00:3::2]:8080")))
    assert (told["server"], told["server_port"], told["local_port"], told["mptcp"]) == ("fd00:3::2", 8080, 1080, True)


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (ServerKind.SQUID, "mptcpize run curl -f --proxy http://10.3.0.2:8080 http://10.4.0.2/a/b"),
        (ServerKind.SING_BOX, "mptcpize run curl -f --proxy http://10.3.0.2:8080 http://10.4.0.2/a/b"),
        (ServerKind.HAPROXY, "mptcpize run curl -f http://10.3.0.2:8080/a/b"),
        (ServerKind.SHADOWSOCKS_LIBEV, "curl -f --proxy socks5h://127.0.0.1:1080 http://10.4.0.2/a/b"),
    ],
)
def test_curl_reaches_the_origin_server_as_the_server_asks(kind: ServerKind, target: str) -> None:
    command = kind.program.curl(["-f"], "10.3.0.2:8080", "http://10.4.0.2/a/b", mptcp=True)
    assert " ".join(map(str, command)) == target


def test_curl_without_mptcp_is_started_without_mptcpize() -> None:
    command = ServerKind.HAPROXY.program.curl([], "[fd00:3::2]:8080", "http://[fd00:4::2]/a", mptcp=False)
    assert command == ["curl", "http://[fd00:3::2]:8080/a"]


def test_missing_names_the_program_that_is_not_installed(tmp_path: Path) -> None:
    def server(*programs: str | Path) -> ProxyServer:
        return ProxyServer("x", Access.FORWARD, programs, lambda _site: (), lambda _site: "")

    present = tmp_path / "module.so"
    present.touch()
    assert server("sh", present).missing() is None
    assert server("sh", tmp_path / "absent").missing() == str(tmp_path / "absent")
    assert server("no-such-program").missing() == "no-such-program"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "hosts: {proxy: {server: apache}, ue: {}, origin: {run: [origin]}}\nflows: {}\n",
            "hosts.proxy.server: 'apache': allowed: squid, squid-tproxy, nginx-http, nginx-stream, haproxy,"
            " systemd-socket, shadowsocks-libev, shadowsocks-rust, sing-box",
        ),
        (
            "hosts: {proxy: {server: haproxy}, ue: {}, origin: {}}\nflows: {}\n",
            "hosts.proxy.server: 'haproxy': needs a host that runs origin",
        ),
        (
            HOSTS % "haproxy" + "flows: {x: {from: origin, to: ue, via: ue, size: 1MB}}\n",
            "flows.x.via: 'ue': this host has no server",
        ),
        (
            HOSTS % "shadowsocks-rust" + "flows: {x: {from: origin, to: ue, via: proxy, size: 1MB, over: two}}\n",
            "flows.x.via: 'proxy': allowed through shadowsocks-rust: protocol mptcp, family 4, over the client's first"
            " link",
        ),
    ],
)
def test_scenario_with_a_wrong_server_is_refused(tmp_path: Path, text: str, found: str) -> None:
    assert problem(tmp_path, text) == found


def test_scenario_starts_a_program_on_each_client_that_needs_one(tmp_path: Path) -> None:
    flows = "flows: {x: {from: origin, to: ue, via: proxy, size: 1MB, over: one}}\n"
    scenario = loaded(tmp_path, HOSTS % "shadowsocks-rust" + flows).scenario
    assert scenario.client_programs() == {"ue": (ServerKind.SHADOWSOCKS_RUST.program.client, "proxy")}
    assert loaded(tmp_path, HOSTS % "sing-box" + flows).scenario.client_programs() == {}


def test_documented_json_is_what_the_lab_starts(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/howto/servers.md").read_text(encoding="utf-8")
    shadowsocks, sing_box = (json.loads(found) for found in re.findall(r"```json\n(\{.*\})\n```", text))
    started = {
        kind: json.loads(kind.program.configuration(Site(tmp_path / "x.conf", "")))
        for kind in (ServerKind.SHADOWSOCKS_RUST, ServerKind.SING_BOX)
    }
    assert shadowsocks == started[ServerKind.SHADOWSOCKS_RUST] | {"password": "..."}
    assert sing_box == {key: started[ServerKind.SING_BOX][key] for key in ("inbounds", "outbounds")}
