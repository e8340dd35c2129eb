"""Files that a disk, a crash or a hand has changed: they are refused or set aside in one line, and stop nothing."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import mutated_bytes
from config_files import write_config
from examples import ETHERNET, WIFI
from worlds import ManualClock

from mptcp_throttle.config.load import load_config
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.linux.netlink_codec import attribute
from mptcp_throttle.model import RateKind
from mptcp_throttle.policy_bundle.bundle import Bundle
from mptcp_throttle.policy_bundle.kept_policy import PolicyDirectory, read_kept
from mptcp_throttle.policy_bundle.published import Announcement
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.control.operator_state import OperatorStore
from mptcp_throttled.kernel.htb.saved import SavedQdiscs, SavedQdiscStore, request_for
from mptcp_throttled.kernel.interfaces import Interface
from mptcp_throttled.kernel.tc import Qdisc, add_qdisc
from mptcp_throttled.vocabulary.operator import Override, Pause
from mptcp_throttled.vocabulary.traffic import SocketTotals, Traffic

REPOSITORY = Path(__file__).parents[2]
YAML = [b"null", b"{}", b"[]", b"1e400", b"-1", b"0x10", b"'", b"&a ", b"*a", b"!!python/object:os.system ", b"\n  "]
YAML += [b"yes", b"2026-02-30", b"25:00", b"unlimited", b"1mbit", b"fd00::/129", b": ", b"- ", b"99999999999999999999"]
JSON = [b"null", b"{}", b"[]", b"1e400", b"NaN", b"-1", b'""', b"true", b"99999999999999999999", b"\\ud800"]
NOON = 1_800_000_000.0


def assert_used_or_refused(path: Path) -> None:
    problems: tuple[str, ...] | list[str] = ()
    try:
        load_config(path)
    except ConfigError as error:
        problems = error.problems
    assert not [line for line in problems if not line.isprintable()]


def test_configuration_is_used_or_refused_in_one_line_for_each_problem(tmp_path: Path) -> None:
    examples = REPOSITORY / "config" / "networks.d"
    networks = [path.read_bytes() for path in sorted(examples.glob("*.yaml"))]
    wifi = (examples / "wifi.yaml").read_text(encoding="utf-8")

    def use(text: bytes) -> None:
        path = write_config(tmp_path, wifi=wifi)
        (tmp_path / "networks.d" / "lte.yaml").write_bytes(text)
        assert_used_or_refused(path)

    mutated_bytes.check(use, networks, YAML)


def test_service_file_is_used_or_refused_in_one_line_for_each_problem(tmp_path: Path) -> None:
    path = write_config(tmp_path, wifi="name: wifi\nsubnets: [10.2.0.0/24]\npreference: 1\n")
    service = (REPOSITORY / "config" / "mptcp-throttle.yaml").read_bytes()

    def use(text: bytes) -> None:
        path.write_bytes(text)
        assert_used_or_refused(path)

    mutated_bytes.check(use, [service], YAML)


def test_state_of_the_operator_is_used_or_dropped(tmp_path: Path) -> None:
    path = tmp_path / "overrides.json"
    store = OperatorStore(path, (WIFI, ETHERNET), ManualClock())
    store.set(Override("ethernet", RateKind.CAP, Rate.parse("2mbit"), end=60.0))
    store.pause(Pause(30.0))

    def use(data: bytes) -> None:
        path.write_bytes(data)
        after = OperatorStore(path, (WIFI, ETHERNET), ManualClock())
        assert {override.network for override in after.current().overrides} <= {"ethernet", "wifi"}

    mutated_bytes.check(use, [path.read_bytes()], JSON)


POLICY = Bundle("europe", 7, 1_796_000_000, "alice", {"networks.d/wifi.yaml": "x", "clients.d/a.yaml": "é\n"})


def test_description_of_a_policy_is_used_or_refused_in_one_line(tmp_path: Path) -> None:
    policies = PolicyDirectory(tmp_path)
    policies.use(policies.stage(POLICY, 5.0))
    path = tmp_path / "policy/europe.7/policy.json"

    def use(data: bytes) -> None:
        path.write_bytes(data)
        problems = []
        try:
            assert str(read_kept(path.parent, "europe")).isprintable()
        except ConfigError as error:
            problems = error.problems
        assert all(problem.isprintable() for problem in problems)

    mutated_bytes.check(use, [path.read_bytes()], JSON)


def test_bundle_that_is_signed_is_read_or_refused_in_one_line() -> None:
    def use(data: bytes) -> None:
        problem = ""
        try:
            assert Bundle.decode(data).encode() == data
        except ValueError as error:
            problem = str(error)
        assert problem.isprintable()

    mutated_bytes.check(use, [POLICY.encode()], JSON)


def test_announcement_of_a_proxy_is_read_or_refused() -> None:
    said = Announcement(7, "ab12", 5.0, "policy 8: is not signed", 9.0)

    def use(data: bytes) -> None:
        with suppress(ValueError, RecursionError):
            read = Announcement.decode(data)
            assert Announcement.decode(read.encode()) == read

    mutated_bytes.check(use, [said.encode()], JSON)


def test_record_of_a_qdisc_is_used_or_ignored(tmp_path: Path) -> None:
    records, options = SavedQdiscStore(tmp_path), attribute(1, (14_999).to_bytes(4, "little"))
    records.write(2, SavedQdiscs((Qdisc("pie", 0x50000, 0xFFFFFFFF, options),), restoring=True))
    path = tmp_path / "original-qdisc-2.json"

    def use(data: bytes) -> None:
        path.write_bytes(data)
        saved = records.load(2)
        for qdisc in () if saved is None else saved.qdiscs:
            assert add_qdisc(Interface(2, "eth0"), request_for(qdisc), replace=True).payload

    mutated_bytes.check(use, [path.read_bytes()], JSON)


def test_history_is_read_or_set_aside_and_goes_on(tmp_path: Path) -> None:
    path, wifi = tmp_path / "history.sqlite", Account(Kind.NETWORK, "wifi")
    with closing(History(path, "boot")) as history:
        for second in range(100):
            history.add(NOON + second, [(wifi, Traffic(sent=100)), (Account(Kind.CLIENT, "10.2.0.2"), Traffic(sent=9))])
        history.flush(NOON, 0, {7: SocketTotals(1, 2, 3, 4, 5, 6, 7)})

    def use(data: bytes) -> None:
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(data)
        with closing(History(path, "boot")) as history:
            history.counted()
            history.budgets()
            history.days()
            history.read(wifi, 60, 0)
            for monotonic in (0.0, 5.0):  # what is damaged is found at the first write, and set aside
                history.add(NOON, [(wifi, Traffic(sent=1))])
                written = history.flush(NOON, monotonic, {})
            assert written
            assert history.read(wifi, 60, 0)

    mutated_bytes.check(use, [path.read_bytes()])
