"""The kernel layer that a configuration asks for, and the one that removes what other instances have left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.config.schema import Config, DaemonSection
from mptcp_throttle.features import FeatureName
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfMap
from mptcp_throttle.model import BackEnd, ClassifierKind
from mptcp_throttle.ports import NO_PORTS
from mptcp_throttled.kernel.allowances import Allowances
from mptcp_throttled.kernel.classes.choice import ClassifierChoice, choose_classifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, FilterSet
from mptcp_throttled.kernel.discards import DiscardPrevention
from mptcp_throttled.kernel.htb.qdisc import RootQdiscs
from mptcp_throttled.kernel.linux_kernel import Htb, LinuxKernel
from mptcp_throttled.kernel.openvswitch.openflow import OpenFlowClassifier
from mptcp_throttled.kernel.openvswitch.queues import PortQueues
from mptcp_throttled.kernel.openvswitch.switch import OpenVswitch
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.kernel.steering.steering import NoSteering, Steering
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup
from mptcp_throttled.vocabulary.features import Absent, Feature

_log = logging.getLogger("mptcp-throttled")

_Parts = tuple[Htb, ClassifierChoice]


class _BackEnd(NamedTuple):
    """How the parts of a back end are put together: for the service, and to remove what an instance has left."""

    serving: Callable[[Config, PacedSockets | None], _Parts]
    """With None for sockets, no socket is to name the class of its subflow."""

    removing: Callable[[Config], _Parts]
    can_remove: Callable[[Config], bool]


def kernel_of(
    config: Config,
    keep: Callable[[int | None], None],
    control_group: ControlGroup,
    allowances: Allowances | None = None,
) -> tuple[LinuxKernel, Steering | NoSteering, dict[str, Feature]]:
    """The kernel layer for the service, steering, and all features by name.

    `keep` is given the descriptor of the kernel program's link. No connection in the `control_group` is capped. The
    programs count for the `allowances`.
    """
    maps = None if allowances is None else allowances.maps
    steering = _steering(config, control_group, maps)
    sockets = _paced_sockets(config, keep, lambda: steering.shared_maps, control_group, maps)
    features: dict[str, Feature] = {
        # First: it must know the marks of an earlier instance before those change that tell them from a client's.
        FeatureName.STEERING: steering,
        FeatureName.PACING: sockets or Absent("daemon.pacing is false"),
        FeatureName.DISCARDS: _discard_prevention(config),
    }
    local = sockets if config.sniffer.kernel_view else None
    return LinuxKernel(*_BACK_ENDS[config.daemon.backend].serving(config, local), sockets), steering, features


def allowances_of(config: Config) -> Allowances | None:
    """What kernel programs count budgets in; None if there are no such programs, or the kernel refuses."""
    if not config.daemon.pacing:
        return None
    try:
        return Allowances(config.proxies)
    except KernelError as error:
        _log.warning("budgets are not counted in the kernel: %s", error)
        return None


def kernel_to_clean(config: Config) -> LinuxKernel:
    """The kernel layer that removes what an instance with this configuration has left."""
    return LinuxKernel(*_BACK_ENDS[config.daemon.backend].removing(config), _paced_sockets(config))


def unused_kernel(config: Config) -> LinuxKernel | None:
    """The kernel layer of the back end that is not configured; None if nothing of that back end can be found."""
    (unused,) = (back_end for kind, back_end in _BACK_ENDS.items() if kind is not config.daemon.backend)
    return LinuxKernel(*unused.removing(config)) if unused.can_remove(config) else None


def unconfigured_kernels(directory: Path) -> tuple[LinuxKernel, LinuxKernel | None]:
    """As `kernel_to_clean` and `unused_kernel`, for what is recognised without a configuration.

    `directory` has the saved qdiscs; Open vSwitch is looked for in the default directory.
    """
    kernel = LinuxKernel(RootQdiscs((), MarkedTraffic(1, NO_PORTS), directory), _removing_classifier())
    switch = OpenVswitch(Path(DaemonSection().openvswitch_directory))
    return kernel, LinuxKernel(*_of_switch("", switch)) if _is_accessible(switch) else None


def _tc(config: Config, sockets: PacedSockets | None) -> _Parts:
    daemon, priority = config.daemon, config.sniffer.chain_priority
    return _with_root_qdiscs(config, choose_classifier(daemon.classifier, daemon.mark_mask, sockets, priority))


def _with_root_qdiscs(config: Config, classifiers: ClassifierChoice) -> _Parts:
    qdiscs = RootQdiscs(
        config.proxy.interfaces,
        MarkedTraffic(config.daemon.mark_mask, config.proxy.ports),
        config.sockets.daemon.parent,
        needs_filter=lambda: classifiers.present.needs_filter,
        # The program that sets the classes of sockets sets their paces, too.
        may_do_without=lambda: classifiers.present.kind == ClassifierKind.SOCKET,
        force=config.daemon.replace_any_qdisc,
    )
    return qdiscs, classifiers


def _removing_classifier() -> ClassifierChoice:
    return ClassifierChoice(RulesClassifier(1))  # removes tables, too, and needs no kernel that has them


def _openvswitch(config: Config) -> _Parts:
    return _of_switch(config.proxy.interfaces[0], _switch(config))


def _of_switch(interface: str, switch: OpenVswitch) -> _Parts:
    return PortQueues(interface, switch), ClassifierChoice(OpenFlowClassifier(interface, switch))


def _switch(config: Config) -> OpenVswitch:
    return OpenVswitch(Path(config.daemon.openvswitch_directory))


def _is_accessible(switch: OpenVswitch) -> bool:
    if not switch.is_accessible and switch.may_be_there:
        _log.info("%s: access denied: leftovers of the back end ovs are not removed", switch.database)
    return switch.is_accessible


_BACK_ENDS: Final = {
    BackEnd.TC: _BackEnd(
        _tc, lambda config: _with_root_qdiscs(config, _removing_classifier()), can_remove=lambda _: True
    ),
    BackEnd.OVS: _BackEnd(
        lambda config, _: _openvswitch(config), _openvswitch, can_remove=lambda config: _is_accessible(_switch(config))
    ),
}
"""A new back end is registered here."""


def _paced_sockets(
    config: Config,
    keep: Callable[[int | None], None] = lambda _: None,
    steering_maps: Callable[[], Mapping[str, BpfMap] | None] = lambda: None,
    control_group: ControlGroup = NO_CONTROL_GROUP,
    allowances: Mapping[str, BpfMap] | None = None,
) -> PacedSockets | None:
    if not config.daemon.pacing:
        return None
    cgroup = None if config.daemon.cgroup is None else Path(config.daemon.cgroup)
    return PacedSockets(
        config.proxies,
        cgroup,
        keep=keep,
        steering_maps=steering_maps,
        control_group=control_group,
        allowances=allowances,
    )


def _steering(
    config: Config, control_group: ControlGroup, allowances: Mapping[str, BpfMap] | None
) -> Steering | NoSteering:
    if not config.daemon.steering:
        return NoSteering("daemon.steering is false")
    if not config.daemon.pacing:
        return NoSteering("daemon.pacing is false")
    # Without kernel_view the proxy's sockets are on another host.
    if not config.sniffer.kernel_view:
        return NoSteering("sniffer.kernel_view is false")
    filters = ClsactFilters(config.sockets.daemon.parent, FilterSet.STEERING)
    return Steering(config.proxies, filters, control_group, allowances)


def _discard_prevention(config: Config) -> Feature:
    if not config.daemon.prevent_discards:
        return Absent("daemon.prevent_discards is false", is_drawback=False)
    # Without kernel_view the proxy's sockets are on another host.
    if not config.sniffer.kernel_view:
        return Absent("sniffer.kernel_view is false", is_drawback=False)
    return DiscardPrevention(config.proxies)
