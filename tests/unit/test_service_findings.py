"""What `doctor` says of services that do not answer, of their status, and of the tables of iptables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from examples import examined_host

from mptcp_throttle.cli.doctor import mark_checks, service_checks
from mptcp_throttle.findings import Finding, Host, daemon_findings
from mptcp_throttle.model import BackEnd, ClassifierKind
from mptcp_throttle.rpc import Json


def host_in(directory: Path) -> Host:
    host = examined_host()
    return replace(host, config=replace(host.config, run_directory=directory))


def status(problems: Mapping[str, str] = MappingProxyType({}), **daemon: object) -> Json:
    fine: Json = {"not_enforced": [], "errors": [], "config": {"problems": []}, "pause": None}
    names = ("steering", "pacing", "discards")
    features = {name: {"problem": problems.get(name), "switched_off": None} for name in names}
    return {"daemon": {**fine, "features": features, **daemon}, "sniffer": {"connected": True, "problem": None}}


def test_service_that_does_not_answer_is_a_problem_with_its_remedy(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    for name, check in (("mptcp-sniffer", service_checks.sniffer), ("mptcp-throttled", service_checks.daemon)):
        (finding,) = check(host)
        assert (finding.subject, finding.problem, finding.harm) == (name, "no answer", True)
        assert finding.remedy == f"`systemctl start {name}`; if it ends again, `journalctl -u {name}` says why"


def test_service_whose_socket_is_not_ours_to_use_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_in(tmp_path)
    socket = host.config.sockets.sniffer
    socket.parent.mkdir()
    socket.touch()
    monkeypatch.setattr(os, "access", lambda path, _: path != socket)
    (finding,) = service_checks.sniffer(host)
    assert (finding.problem, finding.unchecked) == (None, "no answer")

    def refuse(*_: object, **__: object) -> os.stat_result:
        raise PermissionError

    monkeypatch.setattr(Path, "stat", refuse)
    (finding,) = service_checks.daemon(host)
    assert (finding.problem, finding.unchecked) == (None, "no answer")


def test_capture_that_misses_an_interface_is_a_problem_with_its_remedy() -> None:
    fine: Json = {"interfaces": ["eth0", "wg0"], "dropped": 0, "kernel_view": {"enabled": True, "problem": None}}
    remedy = "set the interface up, or correct proxy.interface or proxy.interfaces"
    for captured, missing in ((["eth0"], "wg0"), ([], "eth0, wg0")):
        host = replace(examined_host(), sniffer={**fine, "captured": captured})
        (finding,) = (finding for finding in service_checks.sniffer(host) if finding.problem)
        problem = f"none on {missing}: missing or down"
        assert finding == Finding("capture", problem, remedy, harm=not captured)


@pytest.mark.parametrize(
    "wrong",
    [
        {"not_enforced": ["client 10.1.0.2: sends 5 Mb/s"]},
        {"errors": ["AddClass: ENOMEM"]},
        {"config": {"problems": ["lte.yaml:4: cap: x"]}},
        {"pause": {"seconds_left": None}},
        {"problems": {"pacing": "no CAP_PERFMON"}},
        {"problems": {"discards": "before Linux 6.6 there is no TCX"}},
    ],
)
def test_problem_in_the_status_of_the_daemon_has_a_remedy(wrong: Json) -> None:
    assert [finding for finding in daemon_findings(status()) if finding.problem] == []
    (finding,) = (finding for finding in daemon_findings(status(**wrong)) if finding.problem)
    assert finding.remedy


@pytest.mark.parametrize(
    ("classifier", "version", "is_found"),
    [
        ("rules", "iptables v1.8.9 (nf_tables)", True),
        ("rules", "iptables v1.8.9 (legacy)", False),
        ("rules", None, False),
    ],
)
def test_rules_that_iptables_does_not_show_are_a_note(
    classifier: str, version: str | None, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mark_checks, "output_of", lambda *_: version)
    (finding,) = mark_checks.legacy_tables(replace(examined_host(), daemon=status(classifier=classifier)))
    assert (finding.problem is not None) is is_found
    assert not finding.problem or ("iptables-legacy -t mangle -S" in (finding.remedy or "") and not finding.harm)


@pytest.mark.parametrize("classifier", ["socket", "nft", "ovs"])
def test_host_without_rules_has_no_note_of_iptables(classifier: str) -> None:
    host = replace(examined_host(), daemon=status(classifier=classifier))
    findings: list[Finding] = list(mark_checks.legacy_tables(host))
    assert findings == []


@pytest.mark.parametrize(
    ("in_use", "settings", "why"),
    [
        ("socket", {}, "the kernel program is attached to the proxy of this host"),
        ("nft", {}, "the kernel program does not decide: no CAP_PERFMON"),
        ("rules", {}, "the kernel has no nf_tables, and the kernel program does not decide: no CAP_PERFMON"),
        ("rules", {"classifier": ClassifierKind.RULES}, "daemon.classifier is rules"),
        ("ovs", {"backend": BackEnd.OVS}, "daemon.backend is ovs"),
    ],
)
def test_classifier_in_use_is_remarked_with_its_reason(in_use: str, settings: dict[str, object], why: str) -> None:
    host = examined_host()
    config = replace(host.config, daemon=host.config.daemon.model_copy(update=settings))
    answer = status({"pacing": "no CAP_PERFMON"}, classifier=in_use)
    assert list(mark_checks.classifier(replace(host, config=config, daemon=answer))) == [
        Finding("classifier", remark=f"{in_use}: {why}")
    ]


def test_classifier_of_a_host_that_forwards_is_remarked_with_its_reason() -> None:
    host = examined_host()
    config = replace(host.config, sniffer=host.config.sniffer.model_copy(update={"kernel_view": False}))
    (finding,) = mark_checks.classifier(replace(host, config=config, daemon=status(classifier="nft")))
    assert finding.remark == "nft: the connections end on another host (sniffer.kernel_view: false)"
