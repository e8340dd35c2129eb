import os
import re
import socket
from pathlib import Path

import pytest
from config_files import SERVICE, write_config

from mptcp_throttle.config.load import config_paths, find_namespace, find_sockets, load_config
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.model import ClassifierKind, Per, RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxy
from mptcp_throttle.units import Rate

REPOSITORY = Path(__file__).parents[2]

ETHERNET = "name: ethernet\nsubnets: [10.1.0.0/24, 'fd00:1::/64']\npreference: 2\ncap: 1mbit\n"
HASH = "scrypt:" + "0" * 32 + ":" + "0" * 64
KEY = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="  # RFC 8032, section 7.1
NOT_DECIMAL = "is not decimal, or has a 0 in front; "
PORT_OR_RANGE = "allowed: a port from 1 to 65535, or a range of ports such as 20000-29999"
WIFI = "name: wifi\nsubnets: [10.2.0.0/24]\npreference: 1\n"


def problems(directory: Path, service: str, **networks: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(directory, service, **networks))
    return [line.replace(f"{directory}/", "") for line in caught.value.problems]


def test_networks_are_ordered_by_preference_with_defaults_filled_in(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, SERVICE, ethernet=ETHERNET, wifi=WIFI))
    assert [network.name for network in config.networks] == ["wifi", "ethernet"]
    ethernet = config.network("ethernet")
    assert ethernet is not None
    assert ethernet.rates == {RateKind.CAP: Rate(1_000_000)}
    assert ethernet.per is Per.CLIENT
    assert config.proxy.ports == Ports.of([8080])
    assert config.daemon.mark_mask == 0xFFFF0000


def test_ports_may_be_ranges(tmp_path: Path) -> None:
    text = "proxy: {interface: eth0, ports: [30000, 20000-29999, 8080, '8081']}\n"
    config = load_config(write_config(tmp_path, text, ethernet=ETHERNET, wifi=WIFI))
    assert str(config.proxy.ports) == "8080, 8081, 20000-30000"


@pytest.mark.parametrize("path", ["config/mptcp-throttle.yaml", "config/examples/thesis/mptcp-throttle.yaml"])
def test_shipped_configurations_are_valid(path: str) -> None:
    assert load_config(REPOSITORY / path).networks


def test_configuration_of_the_thesis_has_its_method_and_its_classes() -> None:
    config = load_config(REPOSITORY / "config/examples/thesis/mptcp-throttle.yaml")
    daemon = config.daemon
    assert daemon.classifier is ClassifierKind.RULES
    assert not any((daemon.pacing, daemon.steering, daemon.prevent_discards, config.sniffer.kernel_view))
    assert {network.per for network in config.networks} == {Per.NETWORK}
    ethernet, wifi = config.network("ethernet"), config.network("wifi")
    assert ethernet is not None
    assert wifi is not None
    assert (ethernet.rates[RateKind.CAP], wifi.rates[RateKind.LIMIT], config.daemon.other_traffic) == (
        Rate(1_000_000),
        Rate(40_000_000),
        Rate(50_000_000),
    )
    assert config.proxy.ports == Ports.of([8080])


@pytest.mark.parametrize(
    ("added", "line"),
    [
        ("colour: red", "colour: 'red': unknown key; allowed: clients_directory, "),
        ("sniffer: {histroy: 5}", "sniffer.histroy: 5: unknown key; allowed: capture_buffer, history, "),
        ("daemon: {linger: 5}", "daemon.linger: 5: is not a duration; allowed: "),
        ("daemon: {reconcile_interval: 1ms}", "daemon.reconcile_interval: '1ms': is too small; allowed: 500ms or more"),
        ("daemon: {mark_mask: 0xf0f0}", "daemon.mark_mask: '0xf0f0': allowed: 8 to 16 adjacent bits"),
        ("daemon: {other_traffic: 0}", "daemon.other_traffic: 0: is not a rate; allowed: "),
        (
            "daemon: {classifier: socket, pacing: false}",
            "daemon.classifier: socket: needs daemon.pacing: true and sniffer.kernel_view: true; allowed: auto, nft,",
        ),
        (
            "daemon: {backend: ovs, classifier: rules}",
            "daemon.classifier: rules: has no effect with daemon.backend: ovs; allowed: auto",
        ),
        ("daemon: {control_group: 51%}", "daemon.control_group: '51%': allowed: 0% to 50%, or null"),
        ("daemon: {control_group: 0.1}", "daemon.control_group: '0.1': allowed: 0% to 50%, or null"),
        (
            "daemon: {control_group: 1.5%, pacing: false}",
            "daemon.control_group: 1.5%: needs daemon.pacing: true and sniffer.kernel_view: true; allowed: 0%, null,",
        ),
        ("daemon: {linger: 3651d}", "daemon.linger: '3651d': is not a usable duration; "),
        (
            f"sniffer: {{capture_buffer: {'9' * 400}MiB}}",
            f"sniffer.capture_buffer: '{'9' * 56}...: is not a usable size; allowed: ",
        ),
        ("sniffer: {kernel_view: 1}", "sniffer.kernel_view: 1: allowed: true or false"),
        ("sniffer:", "sniffer: null: is not a mapping; allowed: "),
        *(
            (f"{key}: {value}", f"{key}: {value}: allowed: an absolute path")
            for key in ("run_directory", "state_directory")
            for value in ("'run'", "''", "5")
        ),
        (
            f"run_directory: /{'x' * 86}",
            f"run_directory: '/{'x' * 55}...: allowed: an absolute path of up to 86 bytes",
        ),
        ("networks_directory: ''", "networks_directory: '': allowed: a path"),
        ("networks_directory: [a]", "networks_directory: ['a']: allowed: a path"),
        (SERVICE, "proxy: is given twice (first in line 1); allowed: each key once"),
        ("networks_directory: elsewhere", "networks_directory: elsewhere: cannot be read: No such"),
        ("web: {listen: 'localhost:80'}", "web.listen: 'localhost:80': allowed: "),
        (
            "web: {password_hash: secret}",
            "web.password_hash: 'secret': allowed: a hash that `mptcp-throttle-web --new-password`",
        ),
        ("web: {names: ['a b']}", "web.names[0]: 'a b': allowed: a host name"),
        ("web: {certificate: c.pem}", "web.certificate: 'c.pem': allowed: an absolute path, or null"),
        ("web: {control: true}", "web.control: true: needs web.password_hash; allowed: false, or that too"),
        ("web: {key: /k.pem}", "web.key: /k.pem: needs web.certificate; allowed: null, or that too"),
        (
            f"web: {{listen: '192.0.2.1:443', password_hash: '{HASH}'}}",
            "web.listen: 192.0.2.1:443: is not a loopback address, and needs web.password_hash, web.certificate",
        ),
        (
            "web: {listen: '0.0.0.0:80', certificate: /c, key: /k}",
            "web.listen: 0.0.0.0:80: is not a loopback address",
        ),
        ("web: {listen: '[::]:80'}", "web.listen: [::]:80: is not a loopback address"),
        (
            "web: {listen: '127.0.0.1:9721'}",
            "web.listen: 127.0.0.1:9721: metrics.listen has 127.0.0.1:9721; ",
        ),
        (
            "fleet: {url: 'redis://a'}",
            "fleet.url: 'redis://a': is no address of a server; allowed: valkeys://HOST, or ",
        ),
        (
            "fleet: {url: 'valkey://192.0.2.1'}",
            "fleet.url: 'valkey://192.0.2.1': is not encrypted, and not on loopback",
        ),
        ("fleet: {url: 'valkeys://a:secret@b'}", "fleet.url: 'valkeys://a:secret@b': is no address of a server; "),
        ("fleet: {url: 'valkeys://a,b,c,d,e,f'}", "fleet.url: 'valkeys://a,b,c,d,e,f': has 6 hosts; allowed: "),
        ("fleet: {url: 'valkeys://a:65536'}", "fleet.url: 'valkeys://a:65536': is no address of a server; "),
        ("fleet: {name: Proxy}", "fleet.name: 'Proxy': allowed: up to 32 of a-z, 0-9, - and _"),
        ("fleet: {link: 10}", "fleet.link: 10: is not a rate; allowed: "),
        (
            "fleet: {url: 'valkeys://a', key_file: /k}",
            "fleet.url: valkeys://a:6379: needs fleet.name; allowed: null, or that too",
        ),
        (
            "fleet: {url: 'valkeys://a', name: one}",
            "fleet.url: valkeys://a:6379: needs fleet.key_file; allowed: null, or that too, or fleet.",
        ),
        (
            "fleet: {url: 'valkeys://a', name: one, key_file: /k, share_clients: true}",
            "fleet.key_file: /k: has no effect with fleet.share_clients: true; allowed: one of the two",
        ),
        (
            "fleet: {url: 'valkeys://a', name: one, key_file: /k, tls: {key: /x}}",
            "fleet.tls.key: /x: needs fleet.tls.certificate; allowed: null, or that too",
        ),
        (
            "fleet: {url: 'valkey://[::1]', name: one, key_file: /k, tls: {ca: /x}}",
            "fleet.url: valkey://[::1]:6379: has no use for fleet.tls; allowed: valkeys://, or no fleet.tls",
        ),
        (
            "fleet: {url: 'valkeys://a', name: one, key_file: /k}\nsniffer: {kernel_view: false}",
            "fleet.url: valkeys://a:6379: needs sniffer.kernel_view: true; allowed: null, or that too",
        ),
        (
            "fleet: {policy: {fleet: europe, keys: [AAAA]}}",
            "fleet.policy.keys[0]: 'AAAA': is no public key; allowed: the 44 characters that ",
        ),
        ("fleet: {policy: {fleet: Europe}}", "fleet.policy.fleet: 'Europe': allowed: up to 32 of a-z, 0-9, - and _"),
        (
            f"fleet: {{policy: {{keys: [{', '.join([KEY] * 5)}]}}}}",
            f"fleet.policy.keys: ['{KEY}', '{KEY[:7]}...: allowed: a list of 0 to 4 public keys",
        ),
        (
            f"fleet: {{policy: {{fleet: europe, keys: [{KEY}]}}}}",
            "fleet.policy.fleet: europe: needs fleet.url; allowed: null, or that too",
        ),
        (
            "fleet: {url: 'valkeys://a', name: one, key_file: /k, policy: {fleet: europe}}",
            "fleet.policy.fleet: europe: needs fleet.policy.keys; allowed: null, or these too",
        ),
        ("fleet: {tls: {cert: /x}}", "fleet.tls.cert: '/x': unknown key; allowed: ca, certificate, key"),
    ],
)
def test_option_with_an_error_is_refused_in_one_line(tmp_path: Path, added: str, line: str) -> None:
    (problem,) = problems(tmp_path, f"{SERVICE}{added}\n", ethernet=ETHERNET, wifi=WIFI)
    assert problem.startswith(f"service.yaml:2: {line}")


@pytest.mark.parametrize(
    ("proxy", "line"),
    [
        ("interface: eth0, ports: ['a']", f"ports[0]: 'a': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: []", "ports: []: allowed: a list of 1 to 64 ports and ranges"),
        ("interface: eth0, ports: [0]", f"ports[0]: 0: {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [70000]", f"ports[0]: 70000: {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [yes]", f"ports[0]: yes: {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [[80]]", f"ports[0]: [80]: {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [8080, 29999-20000]", f"ports[1]: '29999-20000': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [0-80]", f"ports[0]: '0-80': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [8080-]", f"ports[0]: '8080-': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [65000-70000]", f"ports[0]: '65000-70000': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: 8080-8090", "ports: '8080-8090': allowed: a list of 1 to 64 ports and ranges"),
        (
            "interface: eth0, ports: [8080, 8000-9000]",
            "ports: [8080, '8000-9000']: has port 8080 twice; allowed: each port once",
        ),
        (
            "interface: eth0, ports: [100-200, 1-300]",
            "ports: ['100-200', '1-300']: has port 100 twice; allowed: each port once",
        ),
        ("interface: eth0, ports: [010]", f"ports[0]: '010': {NOT_DECIMAL}{PORT_OR_RANGE}"),
        ("interface: eth0, ports: [0x50]", f"ports[0]: '0x50': {NOT_DECIMAL}{PORT_OR_RANGE}"),
        ("interface: eth0, ports: [0b1010000]", f"ports[0]: '0b1010000': {NOT_DECIMAL}{PORT_OR_RANGE}"),
        ("interface: eth0, ports: [02000-29999]", f"ports[0]: '02000-29999': {NOT_DECIMAL}{PORT_OR_RANGE}"),
        ("interface: eth0, ports: [1:20]", f"ports[0]: '1:20': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [8_080]", f"ports[0]: '8_080': {PORT_OR_RANGE}"),
        ("interface: eth0, ports: [8080, 8080]", "ports: [8080, 8080]: has port 8080 twice; allowed: each port once"),
        ("ports: [8080]", "interface: is required; allowed: proxy.interface, or proxy.interfaces for several"),
        (
            "interface: eth0, interfaces: [wg0], ports: [8080]",
            "interfaces: wg0: is given besides proxy.interface; allowed: one of the two",
        ),
        ("interfaces: [], ports: [8080]", "interfaces: []: allowed: a list of 1 to 16 interfaces"),
        ("interfaces: [eth0, eth0], ports: [8080]", "interfaces: ['eth0', 'eth0']: allowed: each of them once"),
        ("interfaces: [eth0, a/b], ports: [8080]", "interfaces[1]: 'a/b': allowed: the name of an interface"),
        (
            "interfaces: [eth0, wg0], ports: [8080]}\ndaemon: {backend: ovs",
            "interfaces: eth0, wg0: daemon.backend: ovs has one port; allowed: one interface",
        ),
        *(
            (f"interface: {name}, ports: [8080]", f"interface: {name}: allowed: the name of an interface")
            for name in ("'../../x'", "'.'", "'..'", "'eth0:1'", "'eth 0'", "'sixteen_bytes_xx'", "''", "5")
        ),
    ],
)
def test_proxy_with_an_error_is_refused_in_one_line(tmp_path: Path, proxy: str, line: str) -> None:
    (problem,) = problems(tmp_path, f"proxy: {{{proxy}}}\n", ethernet=ETHERNET, wifi=WIFI)
    assert problem.startswith(f"service.yaml:1: proxy.{line}")


@pytest.mark.parametrize(
    ("service", "line"),
    [
        ("proxy: 5\n", ":1: proxy: 5: is not a mapping; allowed: lines of the form"),
        ("", ": is empty; allowed: a mapping of options"),
        ("# nothing\n", ": is empty; allowed: a mapping of options"),
        ("- a\n", ":1: is not a mapping; allowed: "),
        ("a: b: c\n", ":1: is not valid YAML: "),
    ],
)
def test_service_file_with_an_error_is_refused_in_one_line(tmp_path: Path, service: str, line: str) -> None:
    (problem,) = problems(tmp_path, service, ethernet=ETHERNET, wifi=WIFI)
    assert problem.startswith(f"service.yaml{line}")


BOTH_PROXIES = """\
proxies:
  work: {interface: eth0, ports: [8080]}
  guests: {interfaces: [eth0, wg0], ports: [8443, 20000-20099]}
"""


def test_proxies_have_their_ports_and_networks_and_are_one_for_filters(tmp_path: Path) -> None:
    guests = ETHERNET.replace("cap: 1mbit", "cap: 5mbit\nproxy: guests").replace("ethernet", "guest-ethernet")
    config = load_config(
        write_config(tmp_path, BOTH_PROXIES, a=ETHERNET + "proxy: work\n", b=guests, c=WIFI + "proxy: null\n")
    )
    assert config.proxies.by_name == {
        "work": Proxy(("eth0",), Ports.of([8080])),
        "guests": Proxy(("eth0", "wg0"), Ports.parse([8443, "20000-20099"])),
    }
    assert config.proxy == Proxy(("eth0", "wg0"), Ports.parse([8080, 8443, "20000-20099"]))
    assert {network.name: network.proxy for network in config.networks} == {
        "wifi": None,
        "ethernet": "work",
        "guest-ethernet": "guests",
    }


def proxies(number: int, keys: str = "interface: eth0, ports: [{}]") -> str:
    return "proxies:\n" + "".join(f"  p{n}: {{{keys.format(1000 + n)}}}\n" for n in range(number))


MANY_PORTS = ", ".join(str(port) for port in range(2000, 2066, 2))


@pytest.mark.parametrize(
    ("service", "line"),
    [
        ("log_level: info\n", ":1: proxy: is required; allowed: proxy, or proxies for several"),
        (SERVICE + BOTH_PROXIES, ":2: proxies: work, guests: is given besides proxy; allowed: one of the two"),
        ("proxies: {}\n", ":1: proxies: {}: allowed: 1 to 16 proxies by their names"),
        ("proxies: null\n", ":1: proxies: null: allowed: 1 to 16 proxies by their names"),
        ("proxies: [8080]\n", ":1: proxies: [8080]: allowed: 1 to 16 proxies by their names"),
        (proxies(17), ":1: proxies: "),
        ("proxies: {Work: {interface: eth0, ports: [1]}}\n", ":1: proxies.Work: 'Work': allowed: up to 32 of a-z, 0-9"),
        ("proxies: {work: 5}\n", ":1: proxies.work: 5: is not a mapping; allowed: lines of the form"),
        (
            "proxies: {work: {interface: eth0, port: [1], ports: [1]}}\n",
            ":1: proxies.work.port: [1]: unknown key; allowed: interface, interfaces, namespace, ports",
        ),
        (
            "proxies: {work: {interface: eth0, ports: [0]}}\n",
            f":1: proxies.work.ports[0]: 0: {PORT_OR_RANGE}",
        ),
        (
            "proxies: {work: {ports: [1]}}\n",
            ":1: proxies.work.interface: is required; allowed: proxies.work.interface, or proxies.work.interfaces for",
        ),
        (
            "proxies: {work: {interface: eth0, interfaces: [wg0], ports: [1]}}\n",
            ":1: proxies.work.interfaces: wg0: is given besides proxies.work.interface; allowed: one of the two",
        ),
        (
            BOTH_PROXIES.replace("8080", "8080, 20050-20150"),
            ":3: proxies.guests.ports[1]: 20050-20099: belongs to proxy work; allowed: each port in one proxy",
        ),
        (
            BOTH_PROXIES.replace("8080", MANY_PORTS) + f"  more: {{interface: eth0, ports: [{MANY_PORTS[:-6]}1]}}\n",
            ":4: proxies.more.ports[0]: 2000: belongs to proxy work; allowed: each port in one proxy",
        ),
        (
            BOTH_PROXIES.replace("8443, 20000-20099", MANY_PORTS).replace("8080", ", ".join(map(str, range(1, 65, 2)))),
            ":1: proxies: 65 ports and ranges of all proxies; allowed: up to 64",
        ),
        (
            BOTH_PROXIES.replace("eth0, wg0", ", ".join(f"wg{n}" for n in range(16))),
            ":1: proxies: 17 interfaces of all proxies; allowed: up to 16",
        ),
        (
            BOTH_PROXIES + "daemon: {backend: ovs}\n",
            ":1: proxies: eth0, wg0: daemon.backend: ovs has one port; allowed: one interface",
        ),
    ],
)
def test_proxies_with_an_error_are_refused(tmp_path: Path, service: str, line: str) -> None:
    problem, *_ = problems(tmp_path, service, ethernet=ETHERNET, wifi=WIFI)
    assert problem.startswith(f"service.yaml{line}")


@pytest.mark.parametrize(
    ("service", "ethernet", "line"),
    [
        (SERVICE, "proxy: work", ":5: proxy: work: is not in proxies of service.yaml; allowed: null"),
        (
            BOTH_PROXIES,
            "proxy: home",
            ":5: proxy: home: is not in proxies of service.yaml; allowed: null, work, guests",
        ),
        (BOTH_PROXIES, "proxy: 5", ":5: proxy: 5: allowed: the name of a proxy in mptcp-throttle.yaml, or null"),
        # On guests' ports only Ethernet is left of the two, and Wi-Fi cannot relieve it.
        (BOTH_PROXIES, "proxy: guests", ":4: cap: 1mbit: never applies on a most preferred network; allowed: null"),
    ],
)
def test_network_of_a_proxy_with_an_error_is_refused(tmp_path: Path, service: str, ethernet: str, line: str) -> None:
    wifi = WIFI if service is SERVICE else WIFI + "proxy: work"
    (problem,) = problems(tmp_path, service, ethernet=ETHERNET + ethernet, wifi=wifi)
    assert problem.startswith(f"networks.d/ethernet.yaml{line}")


@pytest.mark.parametrize(
    ("first", "second", "is_taken"),
    [("work", "work", True), ("work", "null", True), ("null", "null", True), ("work", "guests", False)],
)
def test_subnet_may_be_in_a_network_of_each_proxy(tmp_path: Path, first: str, second: str, is_taken: bool) -> None:
    texts = {
        "a": ETHERNET.replace("cap: 1mbit", f"proxy: {first}"),
        "b": ETHERNET.replace("ethernet", "other").replace("cap: 1mbit", f"proxy: {second}"),
    }
    if not is_taken:
        assert len(load_config(write_config(tmp_path, BOTH_PROXIES, **texts)).networks) == 2
        return
    problem, _ = problems(tmp_path, BOTH_PROXIES, **texts)
    assert problem == (
        "networks.d/b.yaml:2: subnets[0]: 10.1.0.0/24: is a subnet of network ethernet too (networks.d/a.yaml:2);"
        " allowed: each subnet in one network of a proxy (those with longer prefixes come first)"
    )


def test_subnets_of_all_proxies_count_for_each(tmp_path: Path) -> None:
    (tmp_path / "subnets").write_text("\n".join(f"10.{n >> 8}.{n & 255}.0/24" for n in range(20_000)))
    text = "name: lte\nsubnets_file: ../subnets\npreference: 1\n"
    (problem,) = problems(tmp_path, proxies(4), lte=text)
    assert problem == "networks.d: 80000 subnets in all networks together; allowed: up to 65535"
    assert load_config(write_config(tmp_path, proxies(3), lte=text))


UNKNOWN = "unknown key; allowed: budgets, burst, cap, client_prefix, healthy, limit, name, overflow, "
PREFERENCE = "allowed: a whole number from 1 to 1000"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "limitt: 3", f"5: limitt: 3: {UNKNOWN}"),
        ("1mbit", "0", "4: cap: 0: is not a rate; allowed: a number with bit"),
        ("1mbit", "-1mbit", "4: cap: '-1mbit': is not a rate; allowed: a number"),
        ("", "limit: 500kbit", "4: cap: 1mbit: is more than limit; allowed: up to 500kbit"),
        ("", "uplink: {cap: 2mbit, limit: 1mbit}", "5: uplink.cap: 2mbit: is more than limit; allowed: up to 1mbit"),
        ("", "uplink: {cap: fast}", "5: uplink.cap: 'fast': is not a rate; allowed: a number"),
        ("", "uplink: {per: client}", "5: uplink.per: 'client': unknown key; allowed: cap, limit"),
        ("", "uplink: 1mbit", "5: uplink: '1mbit': is not a mapping; allowed: lines of"),
        (
            "",
            "client_prefix: {ipv4: 030}",
            f"5: client_prefix.ipv4: '030': {NOT_DECIMAL}allowed: a whole number from 8 to 32",
        ),
        ("", "client_prefix: {ipv6: 129}", "5: client_prefix.ipv6: 129: allowed: a whole number from 32 to 128"),
        ("", "client_prefix: 64", "5: client_prefix: 64: is not a mapping; allowed: lines of"),
        ("", "healthy: {rtt: 0ms}", "5: healthy.rtt: '0ms': is too small; allowed: 1ms or more"),
        ("", "healthy: {loss: 5}", "5: healthy.loss: 5: is not a share; allowed: a number with %, up to 100%"),
        ("", "healthy: {loss: 200%}", "5: healthy.loss: '200%': is "),
        ("", "healthy: {jitter: 5ms}", "5: healthy.jitter: '5ms': unknown key; allowed: loss, rate, rtt"),
        ("", "per: host", "5: per: 'host': allowed: network, client, subflow"),
        ("preference: 2", "preference: 0", f"3: preference: 0: {PREFERENCE}"),
        ("preference: 2", "preference: yes", f"3: preference: yes: {PREFERENCE}"),
        ("10.1.0.0/24", "10.1.0.1/24", "2: subnets[0]: '10.1.0.1/24': is not a subnet"),
        ("name: ethernet", "name: Ether net", "1: name: 'Ether net': allowed: "),
        (
            "10.1.0.0/24",
            "'::ffff:10.1.0.0/120'",
            "2: subnets[0]: '::ffff:10.1.0.0/120': is IPv4-mapped, and packets never"
            " have such addresses; allowed: 10.1.0.0/24",
        ),
        (
            "fd00:1::/64",
            "fe80::1%eth0",
            "2: subnets[1]: 'fe80::1%eth0': has a zone (%eth0), and packets never have one; allowed: fe80::1/128",
        ),
        (
            "[10.1.0.0/24, 'fd00:1::/64']",
            "10.1.0.0/24",
            "2: subnets: '10.1.0.0/24': allowed: a list of 1 to 1000 subnets",
        ),
        ("", "1: x", f"5: 1: 'x': {UNKNOWN}"),
        ("1mbit", "2001-13-45", "4: cap: '2001-13-45': is not a rate; allowed: a number with bit"),
        ("1mbit", f"{'9' * 400}mbit", f"4: cap: '{'9' * 56}...: is not a usable rate; allowed: a number with bit"),
        (ETHERNET, "", " is empty; allowed: a mapping of options"),
    ],
)
def test_network_file_with_an_error_is_refused_in_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    """`new` in place of `old`, or added."""
    assert old in ETHERNET
    (problem,) = problems(tmp_path, SERVICE, e=ETHERNET.replace(old, new) if old else f"{ETHERNET}{new}\n", wifi=WIFI)
    assert problem.startswith(f"networks.d/e.yaml:{line}")


@pytest.mark.parametrize(
    "line",
    [
        *(f"limit: {word}" for word in ("unlimited", "none", "0", "off", "''")),
        "uplink: {limit: infinite}",
        "healthy: {rtt: none}",
        "healthy: {loss: 0%}",
        "healthy: {rate: 0mbit}",
        "provisional: none",
    ],
)
def test_word_for_no_value_is_refused_with_null(tmp_path: Path, line: str) -> None:
    (problem,) = problems(tmp_path, SERVICE, e=f"{ETHERNET}{line}\n", wifi=WIFI)
    assert problem.endswith("; or null for none")


def test_other_traffic_without_a_rate_is_null(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, f"{SERVICE}daemon: {{other_traffic: unlimited}}\n", wifi=WIFI)
    assert problem.endswith("such as 1mbit; or null for none")


NOT_OURS = ["._lte.yaml", ".lte.yaml", ".lte.yml", ".lte.yaml.swp", "lte.yaml~", "#lte.yaml#", "lte.yaml.dpkg-old"]


@pytest.mark.parametrize("name", NOT_OURS)
def test_hidden_file_and_copy_of_a_file_are_ignored(tmp_path: Path, name: str) -> None:
    path = write_config(tmp_path, SERVICE, ethernet=ETHERNET, wifi=WIFI)
    (tmp_path / "networks.d" / name).write_bytes(b"\x00\x05\x16\x07")
    assert [network.name for network in load_config(path).networks] == ["wifi", "ethernet"]
    assert not any(file.name == name for file in config_paths(path))


def test_lock_of_emacs_is_ignored(tmp_path: Path) -> None:
    path = write_config(tmp_path, SERVICE, wifi=WIFI)
    (tmp_path / "networks.d/.#wifi.yaml").symlink_to("operator@proxy.4711:1764264000")
    assert len(load_config(path).networks) == 1


def test_directory_with_hidden_files_alone_has_no_network(tmp_path: Path) -> None:
    path = write_config(tmp_path, SERVICE, wifi=WIFI)
    (tmp_path / "networks.d/wifi.yaml").rename(tmp_path / "networks.d/.wifi.yaml")
    with pytest.raises(ConfigError, match=r"has no access network; allowed: one NAME\.yaml per access network"):
        load_config(path)


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_config(tmp_path, f"\ufeff{SERVICE}", wifi=f"\ufeff{WIFI}")
    assert load_config(path).networks[0].name == "wifi"


@pytest.mark.parametrize(("line", "key"), [("cap: 1mbit", "cap"), ("uplink: {cap: 1mbit}", "uplink.cap")])
def test_cap_that_can_never_apply_is_refused(tmp_path: Path, line: str, key: str) -> None:
    refused = "never applies on a most preferred network; allowed: null, or limit instead"
    refusals = problems(tmp_path, SERVICE, e=ETHERNET, wifi=f"{WIFI}{line}\n")
    assert refusals == [f"networks.d/wifi.yaml:4: {key}: 1mbit: {refused}"]


@pytest.mark.parametrize(
    ("web", "metrics"),
    [
        ("127.0.0.1:9722", "127.0.0.1:9722"),
        ("127.0.0.1:9722", "0.0.0.0:9722"),
        ("127.0.0.1:9722", "[::]:9722"),
        ("[::1]:9722", "[::]:9722"),
    ],
)
def test_page_and_metrics_cannot_have_the_same_address(tmp_path: Path, web: str, metrics: str) -> None:
    service = f"{SERVICE}metrics: {{listen: '{metrics}'}}\nweb: {{listen: '{web}'}}\n"
    assert problems(tmp_path, service, wifi=WIFI) == [
        f"service.yaml:3: web.listen: {web}: metrics.listen has {metrics}; allowed: another port, or null"
    ]


def test_metrics_cannot_have_the_default_address_of_the_page(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, f"{SERVICE}metrics: {{listen: '127.0.0.1:9722'}}\n", wifi=WIFI)
    assert problem.startswith("service.yaml:")
    assert "web.listen: 127.0.0.1:9722: metrics.listen has 127.0.0.1:9722; " in problem


@pytest.mark.parametrize(
    ("page", "metrics"),
    [
        *(("127.0.0.1:1", other) for other in ("'127.0.0.2:1'", "'[::1]:1'", "'127.0.0.1:2'", "'0.0.0.0:2'", "null")),
        *((address, "null") for address in ("127.8.8.8:1", "[::1]:1")),
    ],
)
def test_page_on_loopback_needs_nothing_but_an_address_of_its_own(tmp_path: Path, page: str, metrics: str) -> None:
    service = f"{SERVICE}metrics: {{listen: {metrics}}}\nweb: {{listen: '{page}'}}\n"
    web = load_config(write_config(tmp_path, service, wifi=WIFI)).web
    assert (str(web.listen), web.password_hash) == (page, None)


def test_longest_allowed_run_directory_holds_sockets(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * (86 - len(f"{tmp_path}/")))
    config = load_config(
        write_config(tmp_path, SERVICE + f"run_directory: {directory}\n", ethernet=ETHERNET, wifi=WIFI)
    )
    for path in (config.sockets.sniffer, config.sockets.daemon):
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))


def test_sockets_are_found_whatever_else_is_wrong(tmp_path: Path) -> None:
    path = write_config(tmp_path, "colour: red\nrun_directory: /run/x\nproxy: 5\n", ethernet="{")
    assert find_sockets(path) == Sockets.below(Path("/run/x"))
    path.write_text("colour: red\n")
    assert find_sockets(path).daemon == Path("/run/mptcp-throttle/daemon/daemon.sock")
    path.write_text("run_directory: here\n")
    with pytest.raises(ConfigError, match=r"service\.yaml:1: run_directory: 'here': allowed: an absolute path"):
        find_sockets(path)


@pytest.mark.parametrize(
    "proxies", ["proxy: {colour: red, namespace: X}", "proxies: {a: {namespace: X}, b: {namespace: X}}"]
)
def test_namespace_is_found_whatever_else_is_wrong(tmp_path: Path, proxies: str) -> None:
    proxies = proxies.replace("X", "docker:squid")
    path = write_config(tmp_path, f"size: 9\n{proxies}\n", ethernet="{")
    assert str(find_namespace(path)) == "docker:squid"


def test_namespace_that_is_wrong_or_missing_is_not_found(tmp_path: Path) -> None:
    path = write_config(tmp_path, SERVICE)
    assert find_namespace(path) is None
    for text, problem in (
        ("proxy: {namespace: squid}\n", "proxy.namespace: 'squid': allowed: docker:NAME, "),
        ("proxies: {a: {namespace: /run/a}, b: {}}\n", "proxies.b.namespace: null: is not that of proxy a; allowed: "),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(f"service.yaml:1: {problem}")):
            find_namespace(path)


def test_socket_group_is_looked_up_only_when_needed(tmp_path: Path) -> None:
    path = write_config(tmp_path, SERVICE + "socket_group: no-such-group\n", ethernet=ETHERNET, wifi=WIFI)
    group = load_config(path).socket_group
    assert group is not None
    with pytest.raises(ConfigError) as caught:
        _ = group.gid
    assert caught.value.problems == [
        f"{path}:2: socket_group: 'no-such-group': no such group; allowed: one of this host, or null"
    ]


def test_subnet_of_two_networks_names_both_places(tmp_path: Path) -> None:
    assert problems(tmp_path, SERVICE, ethernet=ETHERNET, wifi=WIFI.replace("10.2.0.0/24", "10.1.0.0/24")) == [
        "networks.d/wifi.yaml:2: subnets[0]: 10.1.0.0/24: is a subnet of network ethernet too"
        " (networks.d/ethernet.yaml:2); allowed: each subnet in one network (those with longer prefixes come first)"
    ]


@pytest.mark.parametrize("subnets", ["0.0.0.0/0", "10.1.0.0/16, 10.1.0.7", "'::/0'", "10.2.0.0/24, 10.2.0.0/24"])
def test_subnets_of_a_network_may_contain_others(tmp_path: Path, subnets: str) -> None:
    path = write_config(tmp_path, SERVICE, ethernet=ETHERNET, wifi=WIFI.replace("10.2.0.0/24", subnets))
    assert len(load_config(path).networks) == 2


@pytest.mark.parametrize("is_of_subnets", [False, True])
def test_pipe_or_device_in_place_of_a_file_is_refused_at_once(tmp_path: Path, is_of_subnets: bool) -> None:
    network = ETHERNET.replace("subnets: [10.1.0.0/24, 'fd00:1::/64']", "subnets_file: ../list")
    assert "subnets_file" in network
    path = write_config(tmp_path, SERVICE, e=network if is_of_subnets else ETHERNET, wifi=WIFI)
    file = tmp_path / ("list" if is_of_subnets else "networks.d/z.yaml")
    os.mkfifo(file)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"is not a regular file; allowed: a text file$"):
            load_config(path)
        file.unlink()
        file.symlink_to("/dev/zero")


def test_yaml_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SERVICE, e=ETHERNET + "#" * (1 << 20), wifi=WIFI)
    assert problem == "networks.d/e.yaml: is too large; allowed: up to 1MiB"


def test_file_that_cannot_be_read_or_is_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^.*missing.yaml: cannot be read: No such file or directory$"):
        load_config(tmp_path / "missing.yaml")
    path = write_config(tmp_path, SERVICE, ethernet=ETHERNET)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(path)


def test_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    networks = {"d": ETHERNET + "per: host\n", "e": "name: e\npreference: x\n", "wifi": WIFI}
    refusals = problems(tmp_path, SERVICE + "colour: red\n", **networks)
    assert [line.split(": ")[:2] for line in refusals[:2]] == [
        ["service.yaml:2", "colour"],
        ["networks.d/d.yaml:5", "per"],
    ]
    assert len(refusals) == 4


def test_two_networks_may_not_share_a_name(tmp_path: Path) -> None:
    refusals = problems(tmp_path, SERVICE, a=WIFI, b=WIFI.replace("10.2.0.0", "10.3.0.0"))
    assert refusals[0].startswith("networks.d/b.yaml:1: name: wifi: is taken by ")


def test_configuration_without_networks_is_refused(tmp_path: Path) -> None:
    (refusal,) = problems(tmp_path, SERVICE)
    assert refusal.startswith(
        "service.yaml:1: networks_directory: networks.d: has no access network; allowed: one NAME.yaml"
    )


WINDOW = "{when: 'Mon 08:00-18:00', cap: 512kbit}"


@pytest.mark.parametrize(
    ("windows", "line"),
    [
        ("[{cap: 1mbit}]", "schedule[0].when: is required"),
        (
            f"[{WINDOW}, {{when: Tue}}]",
            "schedule[1].when: Tue: has no rate; allowed: cap, limit and uplink beside it, or",
        ),
        (
            "[{when: '00:00-24:00', cap: null}, {when: Tue, cap: 1mbit}]",
            "schedule[1].when: Tue: never counts, as earlier windows always do; allowed: another order, or without it",
        ),
        ("[{when: Mo, cap: 1mbit}]", "schedule[0].when: 'Mo': allowed: days or dates, a time of day, or both, such as"),
        ("[{when: Mon, cap: 2mbit, limit: 1mbit}]", "schedule[0].cap: 2mbit: is more than limit; allowed: up to 1mbit"),
        (
            "[{when: Mon, limit: 500kbit}]",
            "schedule[0].limit: 500kbit: is less than the cap 1mbit; allowed: as much, or a lower cap beside it",
        ),
        (
            "[{when: '9999-12-31', cap: 1mbit}]",
            "schedule[0].when: '9999-12-31': has no date 9999-12-31; allowed",
        ),
        ("[{when: 'Mon,Mon', cap: 1mbit}]", "schedule[0].when: 'Mon,Mon': has a day twice; allowed: each day once"),
        (f"[{{when: '{'Mon,' * 20}', cap: 1mbit}}]", "schedule[0].when: 'Mon,Mon,"),
        ('[{when: "Mon\\n08:00-18:00", cap: 1mbit}]', "schedule[0].when: 'Mon\\n08:00-18:00': allowed: days or dates"),
        ("[{when: Mon, uplink: {cap: none}}]", "schedule[0].uplink.cap: 'none': is not a rate; allowed: "),
        (
            "[{when: Mon, colour: red}]",
            "schedule[0].colour: 'red': unknown key; allowed: cap, counts, limit, uplink, when",
        ),
        (WINDOW, "schedule: "),
    ],
)
def test_window_with_an_error_is_refused_in_one_line(tmp_path: Path, windows: str, line: str) -> None:
    (problem,) = problems(tmp_path, SERVICE, e=f"{ETHERNET}schedule: {windows}\n", wifi=WIFI)
    assert problem.startswith(f"networks.d/e.yaml:5: {line}")


def test_window_has_the_rates_that_it_names(tmp_path: Path) -> None:
    windows = "[{when: Mon, cap: unlimited, uplink: {limit: 2mbit}}, {when: Tue, limit: null}]"
    path = write_config(tmp_path, SERVICE, ethernet=f"{ETHERNET}schedule: {windows}\n", wifi=WIFI)
    monday, tuesday = load_config(path).networks[1].schedule
    assert monday.rates == {RateKind.CAP: None, RateKind.UPLINK_LIMIT: Rate.parse("2mbit")}
    assert (str(tuesday.when), tuesday.rates) == ("Tue", {RateKind.LIMIT: None})


def test_cap_in_a_window_of_a_most_preferred_network_is_refused(tmp_path: Path) -> None:
    refused = "never applies on a most preferred network; allowed: null, or limit instead"
    refusals = problems(tmp_path, SERVICE, e=ETHERNET, wifi=f"{WIFI}schedule: [{WINDOW}]\n")
    assert refusals == [f"networks.d/wifi.yaml:4: schedule[0].cap: 512kbit: {refused}"]


@pytest.mark.parametrize(
    "zone", ["Europe/Berlim", "../../etc/passwd", "", "+01:00", "/etc/localtime", "right/UTC", "Factory"]
)
def test_unknown_time_zone_is_refused(tmp_path: Path, zone: str) -> None:
    (problem,) = problems(tmp_path, f"{SERVICE}time_zone: '{zone}'\n", wifi=WIFI)
    assert problem.endswith("allowed: an IANA name, such as Europe/Berlin, or null")


def test_proxies_are_in_one_network_namespace(tmp_path: Path) -> None:
    both = (
        "a: {{interface: eth0, ports: [8080], namespace: {0}}}, b: {{interface: eth0, ports: [8081], namespace: {1}}}"
    )
    inside = load_config(write_config(tmp_path, f"proxies: {{{both.format('lxc:x', 'lxc:x')}}}\n", wifi=WIFI)).proxy
    assert str(inside.namespace) == "lxc:x"
    refusals = problems(tmp_path, f"proxies: {{{both.format('lxc:x', 'null')}}}\n", wifi=WIFI)
    assert refusals == [
        "service.yaml:1: proxies.b.namespace: null: is not that of proxy a; allowed: the same for all proxies"
    ]


THEN = "then: {cap: 256kbit}"
STAGES = "allowed: a mapping with cap, limit or uplink, or a list of 1 to 8 such stages"


@pytest.mark.parametrize(
    ("budgets", "line"),
    [
        (f"[{{{THEN}}}]", "budgets[0].amount: is required; allowed: a number with kB, MB, GB or TB"),
        ("[{amount: 5GB}]", f"budgets[0].then: is required; {STAGES}"),
        ("[{amount: 5GB, then: 256kbit}]", f"budgets[0].then: '256kbit': {STAGES}"),
        ("[{amount: 5GB, then: null}]", f"budgets[0].then: null: {STAGES}"),
        (f"[{{amount: 5, {THEN}}}]", "budgets[0].amount: 5: is not a volume; allowed: a number with kB, MB, GB or TB"),
        (f"[{{amount: 5kB, {THEN}}}]", "budgets[0].amount: '5kB': is not a usable volume; allowed: "),
        (f"[{{amount: 9999TB, {THEN}}}]", "budgets[0].amount: '9999TB': is not a usable volume; allowed: "),
        (f"[{{amount: 5GB, per: subflow, {THEN}}}]", "budgets[0].per: 'subflow': allowed: network, client"),
        (f"[{{amount: 5GB, direction: sum, {THEN}}}]", "budgets[0].direction: 'sum': allowed: down, up, both"),
        (f"[{{amount: 5GB, every: year, {THEN}}}]", "budgets[0].every: 'year': allowed: day, week, month"),
        (f"[{{amount: 5GB, starts: 32, {THEN}}}]", "budgets[0].starts: 32: allowed: a day of the month from 1 to 31"),
        (
            f"[{{amount: 5GB, starts: Mon, {THEN}}}]",
            "budgets[0].starts: Mon: does not fit every: month; allowed: null, or a number from 1 to 31",
        ),
        (
            f"[{{amount: 5GB, every: week, starts: 3, {THEN}}}]",
            "budgets[0].starts: 3: does not fit every: week; allowed: null, or one of Mon, Tue, Wed, Thu, Fri, ",
        ),
        (
            f"[{{amount: 5GB, every: day, starts: 1, {THEN}}}]",
            "budgets[0].starts: 1: does not fit every: day; allowed: null, as a day begins at midnight",
        ),
        (
            f"[{{amount: 5GB, rolling: true, starts: 3, rollover: true, {THEN}}}]",
            "budgets[0].rolling: true: has no periods, and so no starts and rollover; allowed: false, or without ",
        ),
        (
            f"[{{amount: 5GB, {THEN}}}, {{amount: 9GB, rolling: true, {THEN}}}]",
            "budgets[1]: has the per, direction and every of an earlier budget; allowed: one such budget",
        ),
        (
            f"[{{amount: 5GB, warn_at: 0.8, {THEN}}}]",
            "budgets[0].warn_at: '0.8': is not a share; allowed: a number with %",
        ),
        ("[{amount: 5GB, then: {}}]", "budgets[0].then: has no rate; allowed: cap, limit and uplink in it"),
        ("[{amount: 5GB, then: []}]", f"budgets[0].then: []: {STAGES}"),
        ("[{amount: 5GB, then: {at: 50%}}]", "budgets[0].then: has no rate; allowed: cap, limit and uplink in it"),
        (
            "[{amount: 5GB, then: {cap: 1mbit}}]",
            "budgets[0].then.cap: 1mbit: is not less than the cap 1mbit of the network; allowed: less",
        ),
        (
            "[{amount: 5GB, then: [{at: 50%, cap: 512kbit}, {at: 75%, cap: 2mbit}]}]",
            "budgets[0].then[1].cap: 2mbit: is not less than the cap 1mbit of the network; allowed: less",
        ),
        (
            "[{amount: 5GB, then: [{at: 75%, cap: 512kbit}, {at: 50%, cap: 256kbit}]}]",
            "budgets[0].then: at 75%, 50%: allowed: each once, the lowest first",
        ),
        (
            f"[{{amount: 5GB, {THEN}}}, {{amount: 9GB, {THEN}}}]",
            "budgets[1]: has the per, direction and every of an earlier budget; allowed: one such budget",
        ),
        (
            "[{amount: 5GB, then: {rate: 1mbit}}]",
            "budgets[0].then.rate: '1mbit': unknown key; allowed: at, cap, limit, uplink",
        ),
        ("[{amount: 5GB, then: {uplink: {cap: 1x}}}]", "budgets[0].then.uplink.cap: '1x': is not a rate; allowed: "),
        ("[{amount: 5GB, then: [{at: 0%, cap: 1kbit}]}]", "budgets[0].then[0].at: '0%': is too small; allowed: 1%"),
        ("5GB", "budgets: '5GB': allowed: a list of 0 to 8 budgets"),
    ],
)
def test_budget_with_an_error_is_refused_in_one_line(tmp_path: Path, budgets: str, line: str) -> None:
    (problem,) = problems(tmp_path, SERVICE, e=f"{ETHERNET}budgets: {budgets}\n", wifi=WIFI)
    assert problem.startswith(f"networks.d/e.yaml:5: {line}")


@pytest.mark.parametrize("rates", ["cap: unlimited", "limit: none", "uplink: {cap: unlimited}"])
def test_rate_of_a_stage_is_not_refused_with_null(tmp_path: Path, rates: str) -> None:
    budgets = f"budgets: [{{amount: 5GB, then: {{{rates}}}}}]\n"
    (problem,) = problems(tmp_path, SERVICE, e=f"{ETHERNET}{budgets}", wifi=WIFI)
    assert problem.endswith(
        "is not a rate; allowed: a number with bit, kbit, mbit or gbit, from 1kbit to 100gbit, such as 1mbit"
    )


def test_budget_needs_the_sockets_of_the_proxy(tmp_path: Path) -> None:
    service = f"{SERVICE}sniffer: {{kernel_view: false}}\n"
    (problem,) = problems(tmp_path, service, e=f"{ETHERNET}budgets: [{{amount: 5GB, {THEN}}}]\n", wifi=WIFI)
    assert problem.startswith("networks.d/e.yaml:5: budgets: needs sniffer.kernel_view: true")


def test_cap_of_a_stage_never_applies_on_a_most_preferred_network(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SERVICE, e=ETHERNET, wifi=f"{WIFI}budgets: [{{amount: 5GB, {THEN}}}]\n")
    assert "budgets[0].then.cap: 256kbit: never applies on a most preferred network" in problem


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "overflow: 1mbit", "overflow: 1mbit: is not more than the cap 1mbit; allowed: more, or null"),
        ("", "overflow: lots", "overflow: 'lots': is not a rate; allowed: "),
        ("cap: 1mbit", "overflow: 10mbit", "overflow: 10mbit: needs a cap; allowed: null, or a cap too"),
        ("", "per: network\noverflow: 10mbit", "overflow: 10mbit: needs per: client, as it depends on the paths"),
    ],
)
def test_overflow_with_an_error_is_refused_in_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in ETHERNET
    (problem,) = problems(tmp_path, SERVICE, e=ETHERNET.replace(old, new) if old else f"{ETHERNET}{new}\n", wifi=WIFI)
    assert line in problem


def test_overflow_of_a_most_preferred_network_is_refused_with_null(tmp_path: Path) -> None:
    refusals = problems(tmp_path, SERVICE, e=ETHERNET, wifi=f"{WIFI}overflow: 10mbit\n")
    refused = "overflow: 10mbit: never applies on a most preferred network; allowed: null"
    assert refusals == [f"networks.d/wifi.yaml:4: {refused}"]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("shared: true", "shared: true: needs fleet.url, and sniffer.kernel_view: true"),
        ("shared: yes please", "shared: 'yes please': allowed: true or false"),
    ],
)
def test_shared_rate_needs_a_fleet(tmp_path: Path, keys: str, line: str) -> None:
    (problem,) = problems(tmp_path, SERVICE, e=f"{ETHERNET}{keys}\n", wifi=WIFI)
    assert line in problem


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("per: network", "shared: true: needs per: client, by which proxies know whose a rate is"),
        ("overflow: 10mbit", "shared: true: each proxy would have an overflow of its own; allowed: false, or overflow"),
        ("burst: 2MB", "shared: true: each proxy would have a burst of its own; allowed: false, or burst: null"),
    ],
)
def test_shared_rate_with_what_each_proxy_would_have_is_refused(tmp_path: Path, keys: str, line: str) -> None:
    service = f"{SERVICE}fleet: {{url: 'valkey://127.0.0.1', name: one, share_clients: true}}\n"
    (problem,) = problems(tmp_path, service, e=f"{ETHERNET}shared: true\n{keys}\n", wifi=WIFI)
    assert line in problem


@pytest.mark.parametrize(
    ("old", "line"),
    [
        ("name: ethernet\n", "name: is required; allowed: up to 32 of a-z, 0-9, - and _, no - or _ first"),
        ("preference: 2\n", "preference: is required; allowed: a whole number from "),
    ],
)
def test_key_that_is_missing_is_refused_with_what_is_allowed(tmp_path: Path, old: str, line: str) -> None:
    assert old in ETHERNET
    (problem,) = problems(tmp_path, SERVICE, e=ETHERNET.replace(old, ""), wifi=WIFI)
    assert problem.startswith(f"networks.d/e.yaml:1: {line}")


@pytest.mark.parametrize("settings", ["daemon: {steering: false}", "daemon: {pacing: false, steering: false}"])
def test_overflow_needs_steering(tmp_path: Path, settings: str) -> None:
    (problem,) = problems(tmp_path, f"{SERVICE}{settings}\n", e=f"{ETHERNET}overflow: 10mbit\n", wifi=WIFI)
    assert "overflow: 10mbit: needs daemon.pacing: true and sniffer.kernel_view: true and daemon" in problem
