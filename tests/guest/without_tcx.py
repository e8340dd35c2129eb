"""Before Linux 6.6 the daemon names the missing TCX."""

from __future__ import annotations

from examples import ETHERNET
from feature_release import released

from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import Topology, build
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.discards import DiscardPrevention
from mptcp_throttled.vocabulary.features import Situation


def test_missing_tcx_is_named_as_the_problem() -> None:
    with (
        build(Topology()) as lab,
        in_namespace(lab.proxy.namespace),
        released(DiscardPrevention(Proxies.only(Ports.of([8080]), ("eth0",)))) as prevention,
    ):
        prevention.follow(Situation((ETHERNET,)))
        assert prevention.state.problem is not None
        assert prevention.state.problem.endswith("eth0: EINVAL (before Linux 6.6 there is no TCX)")
