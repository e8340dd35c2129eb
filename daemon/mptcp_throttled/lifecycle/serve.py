"""The start of the service: take over what an earlier instance has left, then run until the end."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import closing
from pathlib import Path

from mptcp_throttle import logs, service
from mptcp_throttle.config.load import load_config
from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.network_namespace import require_entered
from mptcp_throttle.ports import NO_PORTS
from mptcp_throttled.kernel.linux_kernel import LinuxKernel
from mptcp_throttled.kernel.steering.steering import NoSteering
from mptcp_throttled.kernel.tcx_programs import TcxPrograms
from mptcp_throttled.kernel.uplink.uplinks import Uplinks
from mptcp_throttled.lifecycle import back_ends
from mptcp_throttled.lifecycle.cleanup import (
    free_steered,
    free_uplinks,
    release_old_ports,
    remove_leftovers,
    remove_unfinished_records,
    require_capabilities,
)
from mptcp_throttled.lifecycle.control_key import control_group
from mptcp_throttled.lifecycle.daemon import Daemon
from mptcp_throttled.lifecycle.kept_link import KeptLink
from mptcp_throttled.lifecycle.namespace_lock import namespace_lock
from mptcp_throttled.lifecycle.port_record import PortRecord

_log = logging.getLogger("mptcp-throttled")


def serve(path: Path) -> None:
    """Run the service with the configuration at `path`. Raises ConfigError and UserError."""
    kept = KeptLink()
    config = load_config(path)
    require_entered(config.proxy.namespace)
    logs.set_level(config.log_level)
    if config.policy_problem is not None:
        _log.error("%s", config.policy_problem)
    service.prefer_latency()
    service.return_freed_memory()
    require_capabilities()
    directory = config.sockets.daemon.parent
    with service.single_instance(directory, "mptcp-throttled", config.socket_group), namespace_lock(path):
        try:
            config.state_directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{config.state_directory}: cannot be made: {error.strerror}", os.EX_NOPERM) from error
        remove_unfinished_records(directory)
        record = PortRecord(directory)
        recorded = record.load()
        group = control_group(config.daemon.control_group, config.state_directory)
        allowances = back_ends.allowances_of(config)
        kernel, steering, features = back_ends.kernel_of(config, kept.replace, group, allowances)
        # Steering frees subflows itself, but only those on the ports that are served.
        if isinstance(steering, NoSteering) or recorded - config.proxy.ports:
            free_steered(directory, recorded)
        service.require_writable(config.state_directory)
        # First: if this back end cannot be used, no subflow may stay throttled by the other one.
        unused = back_ends.unused_kernel(config)
        if unused is not None:
            remove_leftovers(unused)
        try:
            _check_kernel(kernel)
        except UserError:
            free_steered(directory, recorded)
            raise
        with closing(TcxPrograms(directory)) as filters:
            free_uplinks(filters, directory, recorded | config.proxy.ports)
            release_old_ports(recorded, config.proxy.ports if config.daemon.pacing else NO_PORTS, kept)
            record.write(config.proxy.ports)
            uplinks = Uplinks(config.proxy.interfaces, filters)
            daemon = Daemon(path, config, kernel, uplinks, steering, features, kept, group, allowances)
            service.on_stop_signal(daemon.stop)
            service.on_hand_over_signal(daemon.hand_over)
            service.on_reload_signal(daemon.api.reload_on_signal)
            daemon.run()


def _check_kernel(kernel: LinuxKernel) -> None:
    try:
        kernel.check()
        kernel.htb.forget_stale()
    except KernelError as error:
        status = os.EX_NOPERM if error.number in (errno.EPERM, errno.EACCES) else os.EX_OSERR
        raise UserError(str(error), status) from error
