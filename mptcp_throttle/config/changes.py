"""The differences between two configurations, for the log, and whether each takes a reload or a restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from mptcp_throttle.config.network_schema import RATE_KEYS
from mptcp_throttle.config.schema import Config
from mptcp_throttle.config.yaml_file import dotted
from mptcp_throttle.devices import alone, shown_prefix
from mptcp_throttle.model import AccessNetwork, Device, Network
from mptcp_throttle.proxies import Proxies
from mptcp_throttle.units import format_share, format_volume

SNIFFER: Final = "mptcp-sniffer"
DAEMON: Final = "mptcp-throttled"
WEB: Final = "mptcp-throttle-web"
NAMESPACE: Final = "mptcp-throttle-namespace"

_MOST_NAMED: Final = 20
_OF_NETWORK: Final = "(that of the network)"

_RELOADED: Final = frozenset(
    {
        "daemon.linger",
        "daemon.reconcile_interval",
        "daemon.other_traffic",
        "log_level",
        "networks_directory",
        "clients_directory",
        "time_zone",
        "policy",
    }
)
_FOR_SOCKETS: Final = frozenset({"run_directory", "socket_group"})
# Read by the daemon only. A change of the sniffer's settings needs a restart of both services: the daemon validates the
# whole configuration, and reports it as the one in force.
_DAEMON_ONLY: Final = frozenset(
    {
        "daemon.backend",
        "daemon.openvswitch_directory",
        "daemon.mark_mask",
        "daemon.classifier",
        "daemon.replace_any_qdisc",
        "daemon.pacing",
        "daemon.steering",
        "daemon.prevent_discards",
        "daemon.wait_for_clock",
        "daemon.cgroup",
        "daemon.control_group",
        "metrics.listen",
        "metrics.clients",
        "state_directory",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: the texts of `key` before and after, None where it is absent, and empty if it has none.

    `restart` names the services that must be restarted; it is empty if a reload suffices.
    """

    key: str
    old: str | None
    new: str | None
    restart: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.key} added"
        if self.new is None:
            return f"{self.key} removed"
        text = f"{self.key} {self.old} -> {self.new}" if self.old or self.new else f"{self.key} changed"
        if not self.restart:
            return text
        *first, last = self.restart
        named = f"{', '.join(first)} and {last}" if first else last
        return f"{text}: needs a restart of {named}"


def changes(old: Config, new: Config) -> tuple[Change, ...]:
    """All differences: first those of the service file, then those of the networks, then those of the devices."""
    return (*_changed_settings(old, new), *_changed_networks(old, new), *_changed_devices(old, new))


def _changed_settings(old: Config, new: Config) -> Iterator[Change]:
    before, after = _settings(old), _settings(new)
    for key, value in before.items():
        if after[key] != value:
            yield Change(key, _text(key, value), _text(key, after[key]), services_to_restart(key))


def _settings(config: Config) -> dict[str, object]:
    # Not those of `web`: another service reads them, at its start.
    sections = {"sniffer": config.sniffer, "daemon": config.daemon, "metrics": config.metrics, "fleet": config.fleet}
    return {
        **_proxy_settings(config.proxies),
        **{f"{name}.{key}": value for name, section in sections.items() for key, value in section},
        "log_level": config.log_level,
        "time_zone": config.time_zone,
        "run_directory": config.run_directory,
        "state_directory": config.state_directory,
        "policy": None if config.policy is None else config.policy.version,
        # The name only: where it stands in the file is no setting.
        "socket_group": None if config.socket_group is None else config.socket_group.name,
    }


def _proxy_settings(proxies: Proxies) -> dict[str, object]:
    namespace = {"proxy.namespace": proxies.together.namespace}
    if proxies.are_named:
        ports = (f"{name}: {each.ports} on {', '.join(each.interfaces)}" for name, each in proxies.by_name.items())
        return {"proxy.interfaces": None, "proxy.ports": None, "proxies": "; ".join(ports), **namespace}
    together = proxies.together
    return {"proxy.interfaces": together.interfaces, "proxy.ports": together.ports, "proxies": None, **namespace}


def services_to_restart(key: str) -> tuple[str, ...]:
    """The services that read a key of mptcp-throttle.yaml only at their start; none: a reload applies its change."""
    if key in _RELOADED:
        return ()
    if key in _DAEMON_ONLY or key.startswith("fleet."):
        return (DAEMON,)
    if key.startswith("web."):
        return (WEB,)
    if key == "proxy.namespace":
        return (NAMESPACE,)
    return (SNIFFER, DAEMON, *((WEB,) if key in _FOR_SOCKETS else ()))


def _changed_networks(old: Config, new: Config) -> Iterator[Change]:
    for network in old.networks:
        if new.network(network.name) is None:
            yield Change(f"network {network.name}", "", None)
    for network in new.networks:
        before = old.network(network.name)
        if before is None:
            yield Change(f"network {network.name}", None, "")
        else:
            yield from _changed_network(before, network)


def _changed_network(old: AccessNetwork, new: AccessNetwork) -> Iterator[Change]:
    prefix = f"network {new.name}:"
    yield from (Change(f"{prefix} {gone}", "", None) for gone in _not_in(new.subnets, old.subnets))
    yield from (Change(f"{prefix} {come}", None, "") for come in _not_in(old.subnets, new.subnets))
    before, after = _network_settings(old), _network_settings(new)
    for key, value in before.items():
        if after[key] != value:
            yield Change(f"{prefix} {key}", _text(key, value), _text(key, after[key]))


def _network_settings(network: AccessNetwork) -> dict[str, object]:
    settings = {field.name: getattr(network, field.name) for field in fields(network)}
    for name in ("name", "subnets", "rates", "devices"):
        del settings[name]
    settings["burst"] = format_volume(network.burst) if network.burst else None
    return {**settings, **{dotted(key): network.rates.get(kind) for kind, key in RATE_KEYS.items()}}


def _changed_devices(old: Config, new: Config) -> Iterator[Change]:
    """The devices that have come, gone or changed; if these are many, their number."""
    before, after = ({device.name: device for device in config.devices} for config in (old, new))
    gone = [Change(alone(name), "", None) for name in before if name not in after]
    come = [Change(alone(name), None, "") for name in after if name not in before]
    changed = [name for name, device in after.items() if before.get(name, device) != device]
    yield from gone if len(gone) <= _MOST_NAMED else [Change(f"{len(gone)} devices", "", None)]
    yield from come if len(come) <= _MOST_NAMED else [Change(f"{len(come)} devices", None, "")]
    for name in changed[:_MOST_NAMED]:
        yield from _changed_device(before[name], after[name])
    if len(changed) > _MOST_NAMED:
        yield Change(f"{len(changed) - _MOST_NAMED} more devices", "", "")


def _changed_device(old: Device, new: Device) -> Iterator[Change]:
    for absent, settings in ((None, _device_addresses), (_OF_NETWORK, _device_rates), (None, _device_budgets)):
        before, after = settings(old), settings(new)
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key):
                yield Change(f"{alone(new.name)}: {key}", before.get(key, absent), after.get(key, absent))


def _device_addresses(device: Device) -> dict[str, str]:
    return {f"{name}.addresses": ", ".join(map(shown_prefix, all_of)) for name, all_of in device.addresses.items()}


def _device_rates(device: Device) -> dict[str, str]:
    return {
        f"{name}.{dotted(RATE_KEYS[kind])}": _text(kind, rate)
        for name, rates in device.rates.items()
        for kind, rate in rates.items()
    }


def _device_budgets(device: Device) -> dict[str, str]:
    return {f"budgets ({budget.key})": f"{budget}, in {', '.join(budget.networks)}" for budget in device.budgets}


def _not_in(present: Iterable[Network], subnets: Iterable[Network]) -> Iterator[str]:
    """The subnets that are not among the `present` ones; if they are many, their number."""
    present = frozenset(present)
    missing = [subnet for subnet in subnets if subnet not in present]
    if len(missing) > _MOST_NAMED:
        yield f"{len(missing)} subnets"
    else:
        yield from (f"subnet {subnet}" for subnet in missing)


def _text(key: str, value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if key == "daemon.control_group" and isinstance(value, float):
        return format_share(value)
    if isinstance(value, float):  # durations
        return f"{value:.10g}s"
    return f"{value:#010x}" if key == "daemon.mark_mask" else str(value)
