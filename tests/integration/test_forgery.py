"""What somebody on a third host can do to others: nothing with JOINs, and nothing lasting with FINs and RSTs."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from bench import EXECUTABLES, MEGABYTE, Bench, bench, eventually

from mptcp_lab.oracle import listed
from mptcp_lab.squid import PORT
from mptcp_lab.topology import ClientSpec, Topology
from mptcp_throttle.rpc import Json, RpcClient

FORGER = Path(__file__).with_name("forger.py")
VICTIM_AND_FORGER = Topology(clients=(ClientSpec("victim", families=(4,)), ClientSpec("forger", families=(4,))))


def forge(work: Bench, *arguments: str) -> str:
    forger = work.lab.clients["forger"]
    kind, *rest = arguments
    proxy = str(work.lab.proxy_address(4))
    return forger.run(EXECUTABLES / "python", FORGER, kind, proxy, str(PORT), *rest).stdout


def sniffer(work: Bench, method: str) -> Json:
    return RpcClient(work.services.directory / "run" / "sniffer.sock").call(method)


def test_forged_joins_change_nothing_for_anybody() -> None:
    with bench(VICTIM_AND_FORGER) as work:
        work.lab.clients["forger"].run(
            "iptables-legacy", "-A", "OUTPUT", "-p", "tcp", "--tcp-flags", "RST", "RST", "-j", "DROP"
        )
        download = work.download(100 * MEGABYTE)
        work.wait_capped()
        connections, marks = sniffer(work, "snapshot")["connections"], work.marks()
        (victim,) = {subflow.token for subflow in work.services.subflows()}
        guesses = [f"{random.randrange(2**32):08x}" for _ in range(5)]  # noqa: S311
        assert forge(work, "joins", *guesses, victim) == "answered\n"
        counters = sniffer(work, "status")["counters"]
        assert (counters["unknown_token"], counters["wrong_hmac"]) == (5, 1)
        assert sniffer(work, "snapshot")["connections"] == connections
        assert work.marks() == marks
        assert download.running
        work.abort(download)


@pytest.mark.parametrize("flags", ["FA", "R"])
def test_a_forged_end_is_undone_by_the_kernels_list(flags: str) -> None:
    with bench(VICTIM_AND_FORGER) as work:
        download = work.download(100 * MEGABYTE)
        (capped,) = work.wait_capped()
        forge(work, "ends", capped.client, str(capped.client_port), flags)
        eventually(lambda: not work.capped(), "believed", within=1)
        eventually(lambda: len(work.capped()) == 1, "undone", within=3)
        assert len(listed(work.lab.proxy, PORT)) == 2
        assert download.running
        time.sleep(1)
        assert len(work.capped()) == 1
        work.abort(download)
