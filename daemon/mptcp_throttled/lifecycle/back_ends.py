"""The kernel layer that a configuration asks for, and the one that removes what others have left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mptcp_throttle.config.schema import Config, DaemonSection
from mptcp_throttle.model import BackEnd, KernelDecides
from mptcp_throttled.kernel.classes.choice import ClassifierChoice, choose_classifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
from mptcp_throttled.kernel.discards import DiscardPrevention
from mptcp_throttled.kernel.htb.qdisc import RootQdiscs
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.kernel.openvswitch.openflow import OpenFlowClassifier
from mptcp_throttled.kernel.openvswitch.queues import PortQueues
from mptcp_throttled.kernel.openvswitch.switch import OpenVswitch
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.features import Absent, Feature, FeatureName

_log = logging.getLogger("mptcp-throttled")


def kernel_of(config: Config, keep: Callable[[int | None], None]) -> tuple[LinuxKernel, dict[str, Feature]]:
    """The kernel layer for the service, and its features by name.

    `keep` is given the descriptor of the kernel program's link.
    """
    sockets = _paced_sockets(config, keep)
    features: dict[str, Feature] = {
        FeatureName.PACING: sockets or Absent("daemon.pacing is false"),
        FeatureName.DISCARDS: _discard_prevention(config),
    }
    if config.daemon.backend is BackEnd.OVS:
        return LinuxKernel(*_of_switch(config.proxy.interfaces[0], _switch(config)), sockets), features
    is_deciding = config.daemon.kernel_decides is KernelDecides.AUTO and config.sniffer.kernel_view
    classifier = choose_classifier(config.daemon.classifier, _marking(config), sockets if is_deciding else None)
    return LinuxKernel(_root_qdiscs(config, classifier), classifier, sockets), features


def kernel_to_clean(config: Config) -> LinuxKernel:
    """The kernel layer that removes what an instance with this configuration has left."""
    sockets = _paced_sockets(config)
    if config.daemon.backend is BackEnd.OVS:
        return LinuxKernel(*_of_switch(config.proxy.interfaces[0], _switch(config)), sockets)
    assignments = _removing_classifier()
    return LinuxKernel(_root_qdiscs(config, assignments), assignments, sockets)


def other_kernel(config: Config) -> LinuxKernel | None:
    """The kernel layer of the back end that is not configured; None if nothing of that one can be found."""
    if config.daemon.backend is BackEnd.OVS:
        assignments = _removing_classifier()
        return LinuxKernel(_root_qdiscs(config, assignments), assignments)
    return _openvswitch_to_clean(config.proxy.interfaces[0], _switch(config))


def unconfigured_kernels(directory: Path) -> tuple[LinuxKernel, LinuxKernel | None]:
    """As `kernel_to_clean` and `other_kernel`, for what is recognised without a configuration.

    `directory` has the saved qdiscs; Open vSwitch is looked for in the default directory.
    """
    switch = OpenVswitch(Path(DaemonSection().openvswitch_directory))
    kernel = LinuxKernel(RootQdiscs((), MarkedTraffic(1, ()), directory), _removing_classifier())
    return kernel, _openvswitch_to_clean("", switch)


def _openvswitch_to_clean(interface: str, switch: OpenVswitch) -> LinuxKernel | None:
    if switch.is_accessible:
        return LinuxKernel(*_of_switch(interface, switch))
    if switch.may_be_there:
        _log.info("%s: access denied: what an instance with backend ovs may have left is not removed", switch.database)
    return None


def _root_qdiscs(config: Config, assignments: ClassifierChoice) -> RootQdiscs:
    return RootQdiscs(
        config.proxy.interfaces,
        _marking(config),
        config.sockets.daemon.parent,
        needs_filter=lambda: assignments.present.needs_filter,
        force=config.daemon.replace_any_qdisc,
    )


def _of_switch(interface: str, switch: OpenVswitch) -> tuple[PortQueues, ClassifierChoice]:
    return PortQueues(interface, switch), ClassifierChoice(OpenFlowClassifier(interface, switch))


def _switch(config: Config) -> OpenVswitch:
    return OpenVswitch(Path(config.daemon.openvswitch_directory))


def _removing_classifier() -> ClassifierChoice:
    return ClassifierChoice(RulesClassifier(1))  # removes sets and tables, too, and needs no kernel that has them


def _paced_sockets(config: Config, keep: Callable[[int | None], None] = lambda _: None) -> PacedSockets | None:
    if not config.daemon.pacing:
        return None
    cgroup = config.daemon.cgroup
    decides = config.daemon.kernel_decides is KernelDecides.AUTO
    return PacedSockets(config.proxy.ports, None if cgroup is None else Path(cgroup), decides=decides, keep=keep)


def _discard_prevention(config: Config) -> Feature:
    # Without kernel_view the proxy's sockets are on another host.
    if not (config.daemon.prevent_discards and config.sniffer.kernel_view):
        return Absent()
    return DiscardPrevention(config.proxy.interfaces, config.proxy.ports)


def _marking(config: Config) -> MarkedTraffic:
    return MarkedTraffic(config.daemon.mark_mask, config.proxy.ports)
