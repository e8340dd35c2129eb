"""Remove what another instance has left behind: our chains, tables and paces, and every root qdisc that is ours."""

from __future__ import annotations

import logging
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from mptcp_throttle import service
from mptcp_throttle.config.load import find_daemon_directory, load_config
from mptcp_throttle.durable_file import remove_unfinished, write_atomically
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.linux.kernel_error import KernelError, os_errors
from mptcp_throttle.ports import NO_PORTS, Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.enforcing.reconciler import Reconciler
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, FilterSet
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.kernel.steering import steering
from mptcp_throttled.kernel.tcx_programs import TcxPrograms
from mptcp_throttled.kernel.uplink.acks import AckSender, list_acks
from mptcp_throttled.lifecycle import back_ends
from mptcp_throttled.lifecycle.kept_link import KeptLink
from mptcp_throttled.lifecycle.namespace_lock import namespace_lock
from mptcp_throttled.lifecycle.port_record import PortRecord
from mptcp_throttled.vocabulary.kernel_plan import UNTOUCHED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mptcp_throttle.model import FourTuple
    from mptcp_throttled.kernel.linux_kernel import LinuxKernel

_log = logging.getLogger("mptcp-throttled")

_UNTOLD: Final = "clients-untold"
_TELLING_ATTEMPTS: Final = 3
_TELLING_SECONDS: Final = 0.2


def release_sockets(release: Callable[[], int]) -> None:
    """Free the sockets of their paces and classes; log it if one keeps its pace, or if that cannot be determined.

    `release` does it, and returns how many keep their pace. It raises KernelError.
    """
    try:
        paced = release()
    except KernelError as error:
        _log.warning("sockets of the proxy may keep their pace: %s", error)
        return
    if paced:
        _log.warning(
            "%d idle sockets of the proxy keep their pace until they send again while mptcp-throttled runs", paced
        )


def release_old_ports(recorded: Ports, ports: Ports, kept: KeptLink) -> None:
    """Free the sockets that an earlier instance has throttled on ports that are not among `ports`."""
    unserved = recorded - ports
    if unserved:
        kept.forget_earlier()  # its program would throttle them again
        release_sockets(PacedSockets(Proxies.only(unserved)).free_sockets)


def free_steered(directory: Path, ports: Ports) -> None:
    """Free the subflows that another instance has held back; what cannot be freed is logged.

    Before its sockets are freed: what they have tells these subflows from those that clients want as backups.
    """
    with closing(ClsactFilters(directory, FilterSet.STEERING)) as filters:
        steering.remove_leftovers(filters, ports)


def free_uplinks(filters: ClsactFilters, directory: Path, ports: Ports) -> None:
    """Free the uplinks that another instance has left throttled; what cannot be freed is logged.

    Its programs at an interface tell that there may be any: then all clients are told that their subflows are regular.
    A file in `directory` remembers that until it is done.
    """
    untold = directory / _UNTOLD
    try:
        if filters.with_filters():
            with os_errors(f"{untold}"):
                write_atomically(untold, "")
        for interface in filters.interfaces():
            filters.detach(interface)
        filters.forget_stale()
    except KernelError as error:
        _log.warning("uplinks may stay throttled: %s", error)
        return
    if not untold.exists():
        return
    try:
        told = _tell_clients(ports)
        with os_errors(f"{untold}"):
            untold.unlink(missing_ok=True)
    except KernelError as error:
        _log.warning("clients may use subflows as backups until the next start: %s", error)
    else:
        _log.info("uplinks of an earlier instance: %d subflows freed", told)


def _tell_clients(ports: Ports) -> int:
    told: set[FourTuple] = set()
    with AckSender() as sender:
        for attempt in range(_TELLING_ATTEMPTS):  # MP_PRIO is not acknowledged
            if attempt:
                time.sleep(_TELLING_SECONDS)
            for ack in list_acks(ports):
                with suppress(KernelError):  # a client that cannot be reached now
                    sender.send(ack)
                    told.add(ack.ends)
    return len(told)


def remove_leftovers(kernel: LinuxKernel) -> None:
    """Remove what an instance with another back end has left; what cannot be removed is logged."""
    outcome = Reconciler(kernel).full(UNTOUCHED)
    for operation in outcome.done:
        _log.info("leftover of another back end removed: %s", operation)
    for failure in outcome.failures:
        _log.warning("a leftover of another back end may remain: %s", failure)


def clean_up(kernel: LinuxKernel) -> None:
    """Leave nothing of ours on this host. Raises UserError naming what could not be removed or restored."""
    outcome = Reconciler(kernel).full(UNTOUCHED)
    for operation in outcome.done:
        _log.info("cleanup: %s", operation)
    release_sockets(kernel.release_sockets)
    if outcome.failures:
        raise UserError("\n".join(outcome.failures))
    try:
        kernel.htb.forget_stale()
    except KernelError as error:
        raise UserError(str(error)) from error


def remove_unfinished_records(directory: Path) -> None:
    """Remove the records that another instance was writing when it was killed; log it if that is refused."""
    try:
        remove_unfinished(directory)
    except OSError as error:
        _log.warning("%s: unfinished records may remain: %s", directory, error.strerror)


def clean_up_host(path: Path) -> None:
    """Restore everything even if the configuration is invalid: our kernel objects are recognised without it."""
    require_capabilities()
    group = None
    try:
        config = load_config(path)
        kernel, unused = back_ends.kernel_to_clean(config), back_ends.unused_kernel(config)
        directory, group = config.sockets.daemon.parent, config.socket_group
    except ConfigError as error:
        for problem in error.problems:
            _log.warning("%s", problem)
        directory = find_daemon_directory(path)
        kernel, unused = back_ends.unconfigured_kernels(directory)
    with service.single_instance(directory, "mptcp-throttled", group), namespace_lock(path):
        remove_unfinished_records(directory)
        record = PortRecord(directory)
        recorded = record.load()
        free_steered(directory, recorded)
        try:
            clean_up(kernel)
        finally:
            if unused is not None:
                remove_leftovers(unused)
            with closing(TcxPrograms(directory)) as filters:
                free_uplinks(filters, directory, recorded)
            release_old_ports(recorded, NO_PORTS, KeptLink())
            record.write(NO_PORTS)


def require_capabilities() -> None:
    """Raise UserError if this process lacks a right that it cannot do without."""
    service.require_capabilities(CAP_NET_ADMIN=service.CAP_NET_ADMIN, CAP_NET_RAW=service.CAP_NET_RAW)
