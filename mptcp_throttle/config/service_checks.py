"""What the keys of the service file must be for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from mptcp_throttle.config.fleet_section import fleet_problems
from mptcp_throttle.config.schema import MAX_PORT_ITEMS, ProxySection, ServiceFile
from mptcp_throttle.config.yaml_file import KeyPath, YamlFile, dotted
from mptcp_throttle.model import BackEnd, ClassifierKind
from mptcp_throttle.network_namespace import Container
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import MAX_INTERFACES
from mptcp_throttle.units import format_share

KERNEL_PROGRAM: Final = "daemon.pacing: true and sniffer.kernel_view: true"
"""What `has_kernel_program` needs, for a reader."""


def service_problems(service: ServiceFile, file: YamlFile) -> list[str]:
    """What is wrong in a service file each of whose keys is valid by itself, a line each."""
    return [
        *_proxies(service, file),
        *_classifier(service, file),
        *_control_group(service, file),
        *_web(service, file),
        *fleet_problems(service.fleet, file, kernel_view=service.sniffer.kernel_view),
    ]


def interface_names(proxy: ProxySection) -> tuple[str, ...]:
    """The interfaces of a proxy, whichever of the two keys has them."""
    return proxy.interfaces if proxy.interface is None else (proxy.interface, *proxy.interfaces)


def _proxies(service: ServiceFile, file: YamlFile) -> list[str]:
    if not service.proxy.ports and not service.proxies:
        return [f"{file.where(())}: proxy: is required; allowed: proxy, or proxies for several"]
    if service.proxy.ports and service.proxies:
        place = f"{file.place('proxies')}: {', '.join(service.proxies)}"
        return [f"{place}: is given besides proxy; allowed: one of the two"]
    sections: dict[KeyPath, ProxySection] = {("proxies", name): proxy for name, proxy in service.proxies.items()}
    sections = sections or {("proxy",): service.proxy}
    problems = [problem for keys, proxy in sections.items() for problem in _interfaces(proxy, file, keys)]
    namespaces = {name: proxy.namespace for name, proxy in service.proxies.items()}
    return problems or [*_same_ports(service, file), *unequal_namespaces(namespaces, file), *_too_many(service, file)]


def _interfaces(proxy: ProxySection, file: YamlFile, keys: KeyPath) -> list[str]:
    key = dotted(keys)
    if not interface_names(proxy):
        allowed = f"{key}.interface, or {key}.interfaces for several"
        return [f"{file.where(keys)}: {key}.interface: is required; allowed: {allowed}"]
    if proxy.interface is not None and proxy.interfaces:
        where = f"{file.place(*keys, 'interfaces')}: {', '.join(proxy.interfaces)}"
        return [f"{where}: is given besides {key}.interface; allowed: one of the two"]
    return []


def _same_ports(service: ServiceFile, file: YamlFile) -> Iterator[str]:
    earlier: dict[str, Ports] = {}
    for name, proxy in service.proxies.items():
        for index, ports in enumerate(proxy.ports):
            for owner, taken in earlier.items():
                common = taken & Ports((ports,))
                if common:
                    place = file.place("proxies", name, "ports", index)
                    yield f"{place}: {common}: belongs to proxy {owner}; allowed: each port in one proxy"
        earlier[name] = Ports(proxy.ports)


def unequal_namespaces(namespaces: Mapping[str, Container | Path | None], file: YamlFile) -> Iterator[str]:
    """A line for each of these proxies that is not in the network namespace of the first one."""
    first = next(iter(namespaces), None)
    for name, namespace in namespaces.items():
        if first is not None and namespace != namespaces[first]:
            place = f"{file.place('proxies', name, 'namespace')}: {namespace or 'null'}"
            yield f"{place}: is not that of proxy {first}; allowed: the same for all proxies"


def _too_many(service: ServiceFile, file: YamlFile) -> list[str]:
    """What the bounds of a single proxy are for all together."""
    sections = list(service.proxies.values()) or [service.proxy]
    interfaces = dict.fromkeys(name for proxy in sections for name in interface_names(proxy))
    items = sum(len(proxy.ports) for proxy in sections)
    place = file.place("proxies") if service.proxies else file.place("proxy", "interfaces")
    if service.daemon.backend is BackEnd.OVS and len(interfaces) > 1:
        return [f"{place}: {', '.join(interfaces)}: daemon.backend: ovs has one port; allowed: one interface"]
    if len(interfaces) > MAX_INTERFACES:
        return [f"{place}: {len(interfaces)} interfaces of all proxies; allowed: up to {MAX_INTERFACES}"]
    if items > MAX_PORT_ITEMS:
        return [f"{place}: {items} ports and ranges of all proxies; allowed: up to {MAX_PORT_ITEMS}"]
    return []


def has_kernel_program(service: ServiceFile) -> bool:
    """Whether the program on the cgroup decides which subflows are capped."""
    return service.daemon.pacing and service.sniffer.kernel_view


def _control_group(service: ServiceFile, file: YamlFile) -> list[str]:
    share = service.daemon.control_group
    if not share or has_kernel_program(service):
        return []
    place = f"{file.place('daemon', 'control_group')}: {format_share(share)}"
    return [f"{place}: needs {KERNEL_PROGRAM}; allowed: 0%, null, or these too"]


def _classifier(service: ServiceFile, file: YamlFile) -> list[str]:
    daemon = service.daemon
    place = f"{file.place('daemon', 'classifier')}: {daemon.classifier}"
    if daemon.backend is BackEnd.OVS and daemon.classifier is not ClassifierKind.AUTO:
        return [f"{place}: has no effect with daemon.backend: ovs; allowed: auto"]
    if daemon.classifier is not ClassifierKind.SOCKET or has_kernel_program(service):
        return []
    return [f"{place}: needs {KERNEL_PROGRAM}; allowed: auto, nft, rules, or these too"]


def _web(service: ServiceFile, file: YamlFile) -> list[str]:
    problems, web, metrics = [], service.web, service.metrics.listen
    if web.control and web.password_hash is None:
        problems.append(f"{file.place('web', 'control')}: true: needs web.password_hash; allowed: false, or that too")
    if (web.certificate is None) != (web.key is None):
        alone, missing = ("certificate", "key") if web.key is None else ("key", "certificate")
        place = f"{file.place('web', alone)}: {getattr(web, alone)}"
        problems.append(f"{place}: needs web.{missing}; allowed: null, or that too")
    place = f"{file.place('web', 'listen')}: {web.listen}"
    is_for_network = web.listen is not None and not web.listen.host.is_loopback
    if is_for_network and None in (web.password_hash, web.certificate, web.key):
        needs = "web.password_hash, web.certificate and web.key"
        allowed = "a loopback address, or these too"
        problems.append(f"{place}: is not a loopback address, and needs {needs}; allowed: {allowed}")
    if web.listen is not None and metrics is not None and web.listen.overlaps(metrics):
        problems.append(f"{place}: metrics.listen has {metrics}; allowed: another port, or null")
    return problems
