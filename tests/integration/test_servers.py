"""The headline with each server of docs/howto/servers.md: real processes between clients and origin server."""

from __future__ import annotations

import pytest
from polling import eventually
from proxy_world import hosts, receive_rates, serving

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.servers import ServerKind

WINDOW_SECONDS = 3
DOWNLOAD_SECONDS = 2


@pytest.mark.parametrize("kind", ServerKind)
def test_server_keeps_its_capped_path_to_the_cap(kind: ServerKind) -> None:
    missing = kind.program.missing()
    if missing is not None:
        pytest.skip(f"{missing} is not installed; `lab/bootstrap --servers` installs it")
    with hosts(server=kind.program) as built, serving(built) as world:
        before = kernel_state(world.proxy)
        endless = world.download()
        world.wait_settled()
        rates = receive_rates(world.lab.client, WINDOW_SECONDS)
        assert 0.5e6 < rates["eth0"] < 1.25e6
        assert rates["wlan0"] > rates["eth0"]
        world.abort(endless)
        world.wait_restored()
        assert kernel_state(world.proxy) == before
        # As much as arrives in a few seconds, this time from an IPv6 address.
        whole = world.download(round(sum(rates.values()) / 8 * DOWNLOAD_SECONDS), family=6)
        world.wait_capped()
        result = whole.wait()
        assert (result.exit_status, result.intact) == (0, True)
        assert " cap token=" in world.daemon.log_text()
        eventually(lambda: not world.services.subflows(), "all subflows ended")
