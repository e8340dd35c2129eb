"""`mptcp-throttle doctor` names what keeps the services from working, and nothing on a healthy host."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

import pytest
from proxy_world import EXECUTABLES, Hosts, ProxyWorld, serving, unique

from mptcp_lab.services import Services
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ETHERNET, Topology, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process
    from mptcp_throttle.rpc import Json

# Both are part of every Debian, and neither is related to the other.
USER: Final = "games"
GROUP: Final = "mail"
AS_USER: Final = ("setpriv", "--reuid", USER, "--regid", USER)
SNIFFERS_RIGHTS: Final = (
    *("--groups", GROUP, "--inh-caps", "-all,+net_raw,+net_admin", "--ambient-caps", "-all,+net_raw,+net_admin"),
)


@pytest.fixture(scope="module", autouse=True)
def recommended_limits(hosts: Hosts) -> None:
    """The lab's proxy opens JOINs to addresses that clients announce, for other tests."""
    hosts.lab.proxy.run("ip", "mptcp", "limits", "set", "add_addr_accepted", "0")


def findings(services: Services) -> tuple[int, list[Json]]:
    """Its exit status, and what it has found."""
    done = services.cli("doctor", "--json", check=False)
    return done.returncode, json.loads(done.stdout)["findings"]


def problems(services: Services) -> tuple[int, dict[str, str]]:
    """Its exit status, and the problems by subject."""
    status, found = findings(services)
    return status, {finding["subject"]: finding["problem"] for finding in found if finding["problem"] is not None}


def test_doctor_finds_no_problem_on_a_healthy_host(world: ProxyWorld) -> None:
    status, found = findings(world.services)
    assert (status, [finding for finding in found if finding["problem"] or finding["unchecked"]]) == (0, [])
    assert "ok       proxy port 8080" in world.services.cli("doctor").stdout


def test_doctor_finds_a_pause_and_a_missing_sniffer(world: ProxyWorld) -> None:
    world.services.ask("pause", None)
    assert problems(world.services)[1] == {"mptcp-throttled": "is paused"}
    shown = world.services.cli("doctor", check=False).stdout
    assert "problem  mptcp-throttled: is paused; `mptcp-throttle resume`" in shown
    world.sniffer.stop()
    status, found = problems(world.services)
    assert status == 1
    assert set(found) == {"mptcp-sniffer", "mptcp-throttled"}


def test_doctor_finds_missing_mptcp_and_a_missing_interface() -> None:
    with build(Topology()) as lab:
        services = Services(lab.proxy, interfaces=["eth7"])
        lab.proxy.sysctl({"net/mptcp/enabled": "0"})
        listener = lab.proxy.start("listener", "python3", "-m", "http.server", "8080")
        listener.wait_until(lambda: lab.proxy.listens(8080), "listening")
        status, found = problems(services)
    assert status == 1
    assert found["kernel"] == "MPTCP is off"
    assert found["interface"].startswith("eth7 does not exist; allowed: one of eth0, lo")
    assert found["proxy port 8080"] == "has a listener without MPTCP"
    assert {"mptcp-sniffer", "mptcp-throttled"} <= set(found)


@pytest.fixture
def proxy(hosts: Hosts) -> Host:
    return hosts.lab.proxy


@pytest.fixture
def services(proxy: Host) -> Services:
    """Configured, not started."""
    return Services(proxy, name=unique("doctor"))


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ("subflows 0 add_addr_accepted 0", "are refused"),
        ("subflows 0 add_addr_accepted 8", "are refused"),
        (
            "subflows 2 add_addr_accepted 8",
            "are opened by the proxy itself, to up to 8 addresses that a client announces",
        ),
        ("subflows 2 add_addr_accepted 0", None),
    ],
)
def test_doctor_reads_the_limits_of_the_path_manager(
    proxy: Host, services: Services, limits: str, problem: str | None
) -> None:
    before = proxy.run("ip", "mptcp", "limits").stdout.split()
    proxy.run("ip", "mptcp", "limits", "set", *limits.split())
    try:
        assert problems(services)[1].get("JOINs") == problem
    finally:
        proxy.run("ip", "mptcp", "limits", "set", *before)


@pytest.mark.parametrize(
    ("parameter", "bad", "good", "problem"),
    [
        ("allow_join_initial_addr_port", "0", "1", "are refused at the address of the first subflow"),
        ("pm_type", "1", "0", "are decided by the path manager 'userspace', which may refuse them or open some"),
    ],
)
def test_doctor_reads_who_decides_about_joins(
    proxy: Host, services: Services, parameter: str, bad: str, good: str, problem: str
) -> None:
    proxy.sysctl({f"net/mptcp/{parameter}": bad})
    try:
        assert problems(services)[1]["JOINs"] == problem
    finally:
        proxy.sysctl({f"net/mptcp/{parameter}": good})
    assert "JOINs" not in problems(services)[1]


def test_doctor_heeds_addresses_that_are_announced(hosts: Hosts, services: Services) -> None:
    proxy, address = hosts.lab.proxy, str(hosts.lab.proxy_address(4))
    endpoint = ("ip", "mptcp", "endpoint")
    proxy.sysctl({"net/mptcp/allow_join_initial_addr_port": "0"})
    try:
        proxy.run(*endpoint, "add", address, "subflow")
        assert problems(services)[1]["JOINs"] == "are refused at the address of the first subflow"
        proxy.run(*endpoint, "flush")
        proxy.run(*endpoint, "add", address, "signal")
        (joins,) = (finding for finding in findings(services)[1] if finding["subject"] == "JOINs")
        assert (joins["problem"], joins["remark"]) == (None, f"go to announced addresses: {address}")
    finally:
        proxy.run(*endpoint, "flush")
        proxy.sysctl({"net/mptcp/allow_join_initial_addr_port": "1"})


def test_doctor_finds_who_receives_the_events_of_mptcp(proxy: Host, world: ProxyWorld) -> None:
    proxy.sysctl({"net/mptcp/pm_type": "1"})
    try:
        (joins,) = (finding for finding in findings(world.services)[1] if finding["subject"] == "JOINs")
        remark = "are decided by the path manager 'userspace', whose events a program receives"
        assert (joins["problem"], joins["remark"]) == (None, remark)
        world.sniffer.stop()
        assert problems(world.services)[1]["JOINs"].startswith("are decided by the path manager 'userspace', which may")
    finally:
        proxy.sysctl({"net/mptcp/pm_type": "0"})


@pytest.mark.parametrize(("feature", "key"), [("pacing", "pacing"), ("discards", "prevent_discards")])
def test_doctor_remarks_what_is_switched_off(hosts: Hosts, feature: str, key: str) -> None:
    with serving(hosts, daemon={key: False}) as world:
        shown = world.services.cli("doctor", "--monitoring")
        status, found = findings(world.services)
    assert (shown.returncode, status) == (0, 0)
    (remark,) = (finding["remark"] for finding in found if finding["subject"] == feature)
    assert remark == f"switched off: daemon.{key} is false"


def test_doctor_remarks_opened_subflows_that_are_throttled(hosts: Hosts, proxy: Host) -> None:
    proxy.run("ip", "mptcp", "limits", "set", "add_addr_accepted", "8")
    try:
        for classifier, is_found in (("socket", False), ("rules", True)):
            with serving(hosts, daemon={"classifier": classifier}) as world:
                assert ("JOINs" in problems(world.services)[1]) == is_found
    finally:
        proxy.run("ip", "mptcp", "limits", "set", "add_addr_accepted", "0")


def test_doctor_remarks_a_qdisc_that_may_be_replaced(proxy: Host, services: Services) -> None:
    subject = "root qdisc of eth0"
    proxy.tc(["qdisc replace dev eth0 root handle 7: htb"])
    try:
        assert problems(services)[1][subject].startswith("htb cannot be restored exactly")
        services.configure_daemon(replace_any_qdisc=True)
        (root,) = (finding for finding in findings(services)[1] if finding["subject"] == subject)
    finally:
        proxy.tc([f"qdisc replace dev eth0 root {Topology().proxy_qdisc}"])
    assert root["problem"] is None
    assert root["remark"].endswith("htb cannot be restored exactly, but daemon.replace_any_qdisc is true")


class SnifferOfUser(Services):
    """The sniffer runs as a user without rights to files, in one more group."""

    def __init__(self, proxy: Host, name: str) -> None:
        super().__init__(proxy, name=name)
        self.config.write_text(self.config.read_text().replace("socket_group: root", f"socket_group: {GROUP}"))
        directory = self.sockets.sniffer.parent
        directory.mkdir(parents=True)
        shutil.chown(directory, USER, GROUP)

    def _start(self, name: str) -> Process:
        command = (self._executables / name, "--config", self.config)
        return self.proxy.start(name, *AS_USER, *SNIFFERS_RIGHTS, *command, machine_files=True)

    def can_read_all(self) -> bool:
        """Whether the sniffer can read its configuration: what a start of it says."""
        read = (*AS_USER, "--groups", GROUP, self._executables / "mptcp-throttle", "--config", self.config)
        return self.proxy.run(*read, "check-config", check=False).returncode == 0


@pytest.fixture
def running_sniffer(proxy: Host) -> Iterator[SnifferOfUser]:
    services = SnifferOfUser(proxy, name=unique("doctor"))
    sniffer = services.start_sniffer()
    sniffer.wait_until(lambda: services.answers(services.sockets.sniffer), "answering")
    yield services
    sniffer.stop()


@pytest.mark.parametrize(
    ("path", "mode", "group", "shown"),
    [
        ("mptcp-throttle.yaml", 0o640, "root", "-rw-r----- root:root"),
        ("networks.d/ethernet.yaml", 0o600, "root", "-rw------- root:root"),
        ("networks.d", 0o711, "root", "drwx--x--x root:root"),
        ("networks.d", 0o744, "root", "drwxr--r-- root:root"),
        (".", 0o700, "root", "drwx------ root:root"),
        ("networks.d/ethernet.yaml", 0o640, GROUP, None),
        ("networks.d", 0o750, GROUP, None),
    ],
)
def test_doctor_finds_files_that_a_service_cannot_read(
    running_sniffer: SnifferOfUser, path: str, mode: int, group: str, shown: str | None
) -> None:
    services = running_sniffer
    assert "configuration for mptcp-sniffer" not in problems(services)[1]
    file = services.directory / path
    shutil.chown(file, group=group)
    file.chmod(mode)
    assert services.can_read_all() == (shown is None)
    expected = None if shown is None else f"user {USER} cannot read {file.resolve()} ({shown})"
    found = problems(services)[1].get("configuration for mptcp-sniffer")
    assert found == expected


def test_doctor_finds_an_unknown_socket_group(services: Services) -> None:
    assert "socket group" not in problems(services)[1]
    services.config.write_text(services.config.read_text().replace("socket_group: root", "socket_group: nobody-has-it"))
    status, found = problems(services)
    assert status == 1
    assert "socket_group: 'nobody-has-it': no such group" in found["socket group"]


@pytest.mark.parametrize(
    ("groups", "problem"), [("root", f"{USER} is not a member of the group {GROUP}"), (GROUP, None)]
)
def test_doctor_finds_that_its_user_is_no_member_of_the_socket_group(
    services: Services, groups: str, problem: str | None
) -> None:
    services.config.write_text(services.config.read_text().replace("socket_group: root", f"socket_group: {GROUP}"))
    user = (*AS_USER, "--groups", groups)
    done = services.proxy.run(
        *user, EXECUTABLES / "mptcp-throttle", "--config", services.config, "doctor", "--json", check=False
    )
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (found["CLI user"]["problem"], found["CLI user"]["harm"]) == (problem, problem is None)
    assert found["JOINs"]["problem"] is None
    assert found["marks of others"]["unchecked"] == "only root may list the rules of iptables and nftables"


MASK: Final = 0xFFFF0000
MANGLE: Final = ("iptables-legacy", "-t", "mangle")
POSTROUTING: Final = ("POSTROUTING", "-p", "tcp", "--sport", str(PORT), "-j")


@pytest.mark.parametrize("tool", ["iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"])
def test_doctor_finds_chains_of_iptables_that_change_marks(proxy: Host, services: Services, tool: str) -> None:
    services.configure_daemon(classifier="rules")
    mangle = (tool, "-t", "mangle")
    proxy.run(*mangle, "-A", *POSTROUTING, "MARK", "--set-xmark", "0x1/0xffff")
    assert "marks of others" not in problems(services)[1]
    proxy.run(*mangle, "-A", *POSTROUTING, "CONNMARK", "--restore-mark")
    found = problems(services)[1]["marks of others"]
    proxy.run(*mangle, "-F", "POSTROUTING")
    assert found.startswith(f"chain POSTROUTING of table mangle ({tool}) changes marks under {MASK:#x} after us")
    assert "marks of others" not in problems(services)[1]


NFT_TABLE: Final = """\
table {family} others {{
    chain marking {{ meta mark set {value}; }}
    chain post {{
        type filter hook {hook};
        tcp sport vmap {{ 8080 : jump marking }}
    }}
}}
"""


@pytest.mark.parametrize(
    ("family", "hook", "value", "is_found"),
    [
        ("inet", "postrouting priority -140", "0x20000", True),
        ("inet", "postrouting priority -140", "meta mark & 0xfff0ffff | 0x20000", True),
        ("inet", "postrouting priority -140", "ct mark", True),
        ("inet", "postrouting priority -140", "meta mark & 0xffff0000 | 0x7", False),
        ("inet", "postrouting priority -160", "0x20000", False),
        ("inet", "output priority 0", "0x20000", False),
        ("netdev", 'egress device "eth0" priority 0', "0x20000", True),
    ],
)
def test_doctor_finds_chains_of_nftables_that_change_marks(
    proxy: Host, services: Services, family: str, hook: str, value: str, is_found: bool
) -> None:
    services.configure_daemon(classifier="rules")
    file = services.directory / "others.nft"
    file.write_text(NFT_TABLE.format(family=family, hook=hook, value=value))
    proxy.run("nft", "-f", file)
    found = problems(services)[1].get("marks of others")
    proxy.run("nft", "delete", "table", family, "others")
    assert (found is not None) == is_found
    if found is not None:
        assert found.startswith(f"chain marking of table {family} others (nft) changes marks under {MASK:#x} after us")


@pytest.mark.parametrize(("port", "is_found"), [(22, False), (PORT, True)])
def test_doctor_leaves_out_rules_for_ports_of_others(
    proxy: Host, services: Services, port: int, is_found: bool
) -> None:
    services.configure_daemon(classifier="socket")
    file = services.directory / "others.nft"
    file.write_text(
        "table inet others { chain post { type filter hook postrouting priority 0;"
        f" tcp sport {{ 23, {port} }} meta priority set 1:2\n}}\n}}\n"
    )
    for add, remove in (
        (
            (*MANGLE, "-A", "OUTPUT", "-p", "tcp", "--sport", str(port), "-j", *SETS_PRIORITIES),
            (*MANGLE, "-F", "OUTPUT"),
        ),
        (("nft", "-f", file), ("nft", "delete", "table", "inet", "others")),
    ):
        proxy.run(*add)
        found = problems(services)[1]
        proxy.run(*remove)
        assert ("marks of others" in found) == is_found


SETS_MARKS: Final = (*POSTROUTING, "MARK", "--set-mark", "0")
SETS_PRIORITIES: Final = ("CLASSIFY", "--set-class", "1:2")


@pytest.mark.parametrize(
    ("classifier", "harmless", "harmful"),
    [
        # A socket has given its priority before OUTPUT.
        ("socket", SETS_MARKS, ("OUTPUT", "-j", *SETS_PRIORITIES)),
        ("nft", SETS_MARKS, (*POSTROUTING, *SETS_PRIORITIES)),
        ("rules", None, SETS_MARKS),
    ],
)
def test_doctor_heeds_chains_that_change_what_names_the_class(
    hosts: Hosts, classifier: str, harmless: tuple[str, ...] | None, harmful: tuple[str, ...]
) -> None:
    proxy = hosts.lab.proxy
    with serving(hosts, daemon={"classifier": classifier}) as world:
        try:
            if harmless is not None:
                proxy.run(*MANGLE, "-A", *harmless)
                assert problems(world.services) == (0, {})
            proxy.run(*MANGLE, "-A", *harmful)
            status, found = problems(world.services)
            expected = {"marks of others"}
            assert (status, set(found) - {"iptables"} if classifier == "rules" else set(found)) == (0, expected)
        finally:
            for chain in ("OUTPUT", "POSTROUTING"):
                proxy.run(*MANGLE, "-F", chain)


def test_doctor_looks_up_routes_from_the_address_that_clients_connect_to(proxy: Host, services: Services) -> None:
    # The lab routes by source address (ip-rule(8)): what the main table says does not matter.
    for table, used in (("main", None), ("1", "lo")):
        proxy.ip([f"route add {ETHERNET.v4} dev lo table {table}"])
        found = problems(services)[1].get("routes to clients of ethernet")
        proxy.ip([f"route delete {ETHERNET.v4} dev lo table {table}"])
        assert (found is None) == (used is None)
    assert found == f"to {ETHERNET.v4} leave through lo, where neither HTB nor mptcp-sniffer sees packets"
