"""What proxies report of themselves: what is taken for a report, and who is in reach."""

import pytest

from mptcp_throttle.cli import fleet_tables
from mptcp_throttle.cli.console import output_console
from mptcp_throttled.answers.status import proxies
from mptcp_throttled.fleet.keys import MAX_FIELDS, field_of
from mptcp_throttled.fleet.reports import LEFT_SECONDS, MOST_CHARACTERS, Report, Reports
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.fleet import GONE_SECONDS, LATE_SECONDS, FleetState, KnownProxy, Load, Presence

ONE, TWO = field_of("proxy-1", "0000000a"), field_of("proxy-2", "0000000b")
OWN = field_of("proxy-0", "00000000")
AT = 1_700_000_000.0


def report(number: int, at: float = AT, sent: int = 0) -> Report:
    return Report(number, int(at), "1.0.0", Load(sent_bps=sent))


def test_report_is_read_as_it_was_written() -> None:
    made = Report(7, 1_700_000_000, "1.0.0+deb12", Load(940_000_000, 5_000_000, 1200, 300))
    assert str(made) == "7 1700000000 1.0.0+deb12 940000000 5000000 1200 300"
    assert Report.parse(str(made)) == made


def test_longest_report_is_within_the_bound() -> None:
    longest = Report(10**12 - 1, 10**12 - 1, "1" * 24, Load(10**15 - 1, 10**15 - 1, 10**9 - 1, 10**9 - 1))
    assert Report.parse(str(longest)) == longest
    assert len(str(longest)) <= MOST_CHARACTERS


def test_report_of_a_long_version_and_a_negative_rate_is_one() -> None:
    made = Report.made(1, 2, "1.0.0+git20261129.0123456789", Load(-5, 1, 2, 3))
    assert Report.parse(str(made)) == Report(1, 2, "1.0.0+git20261129.012345", Load(0, 1, 2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7 1 1.0.0 1 1 1",
        "7 1 1.0.0 1 1 1 1 1",
        "-7 1 1.0.0 1 1 1 1",
        "7 NaN 1.0.0 1 1 1 1",
        "7 1 1.0.0 1e9 1 1 1",
        "7 1 1.0.0 9999999999999999 1 1 1",
        "7 1 <b>1</b> 1 1 1 1",
        "7 1 \x1b[2J 1 1 1 1",
        f"7 1 {'1' * 25} 1 1 1 1",
        "7 1 1.0.0 1 1 1 1\n",
        "\u0661 1 1.0.0 1 1 1 1",
    ],
)
def test_text_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no report of a proxy"):
        Report.parse(text)


def presences(reports: Reports) -> dict[str, Presence]:
    return {name: proxy.presence for name, proxy in reports.proxies().items()}


def test_proxy_that_is_silent_is_late_and_then_gone_until_it_reports_again() -> None:
    reports = Reports()
    reports.note({ONE: report(1)}, 1000.0, AT, is_whole=True)
    for silent, expected in (
        (0.0, Presence.REACHABLE),
        (LATE_SECONDS, Presence.LATE),
        (GONE_SECONDS, Presence.GONE),
    ):
        reports.note({OWN: report(int(silent)), ONE: report(1)}, 1000.0 + silent, AT + silent, is_whole=True)
        assert presences(reports)["proxy-1"] is expected
    reports.note({ONE: report(2)}, 2000.0, AT + 1000, is_whole=True)
    assert presences(reports) == {"proxy-1": Presence.REACHABLE}


def test_silence_counts_only_while_somebody_reports() -> None:
    """A server that takes no report has no new one of anybody."""
    reports, later = Reports(), 1000.0 + LEFT_SECONDS
    there = {OWN: report(1), ONE: report(1), TWO: report(1)}
    reports.note(there, 1000.0, AT, is_whole=True)
    reports.note(there, later, AT + LEFT_SECONDS, is_whole=True)
    assert {*presences(reports).values()} == {Presence.REACHABLE}
    assert reports.old(later) == []
    # Another proxy can still write.
    reports.note({**there, TWO: report(2)}, later, AT + LEFT_SECONDS, is_whole=True)
    assert presences(reports)["proxy-1"] is Presence.GONE
    assert presences(reports)["proxy-2"] is Presence.REACHABLE


def test_report_that_was_there_before_is_as_old_as_it_says() -> None:
    reports = Reports()
    reports.note({ONE: report(1, AT - 700), TWO: report(1, AT + 10**6)}, 1000.0, AT, is_whole=True)
    assert presences(reports) == {"proxy-1": Presence.GONE, "proxy-2": Presence.REACHABLE}


def test_clock_that_is_wrong_makes_no_proxy_late_that_reports() -> None:
    reports = Reports()
    for number in range(3):
        reports.note({ONE: report(number, 0.0)}, 1000.0 + 2 * number, AT + 2 * number, is_whole=True)
    assert presences(reports) == {"proxy-1": Presence.REACHABLE}


def test_of_several_ledgers_of_a_proxy_the_latest_report_counts() -> None:
    again = field_of("proxy-1", "0000000c")
    reports = Reports()
    reports.note({again: report(9, AT, sent=5), ONE: report(4, AT - 50)}, 1000.0, AT, is_whole=True)
    assert {name: (proxy.heard, proxy.load.sent_bps) for name, proxy in reports.proxies().items()} == {
        "proxy-1": (1000.0, 5)
    }


def test_report_that_cannot_be_read_leaves_the_last_one() -> None:
    reports = Reports()
    reports.note({ONE: report(1), TWO: report(1)}, 1000.0, AT, is_whole=True)
    reports.note({TWO: report(2)}, 1002.0, AT + 2, is_whole=False)
    assert reports.proxies().keys() == {"proxy-1", "proxy-2"}
    reports.note({TWO: report(3)}, 1004.0, AT + 4, is_whole=True)
    assert reports.proxies().keys() == {"proxy-2"}


def test_proxy_whose_report_cannot_be_read_keeps_its_state() -> None:
    reports = Reports()
    reports.note({ONE: report(1), TWO: report(1)}, 1000.0, AT, is_whole=True)
    reports.note({OWN: report(1)}, 1000.0 + GONE_SECONDS, AT + GONE_SECONDS, is_whole=False, unreadable={ONE})
    assert (presences(reports)["proxy-1"], presences(reports)["proxy-2"]) == (Presence.REACHABLE, Presence.GONE)
    reports.note({OWN: report(2), ONE: report(1)}, 1000.0 + GONE_SECONDS, AT + GONE_SECONDS, is_whole=False)
    assert presences(reports)["proxy-1"] is Presence.GONE


def test_reports_of_ever_other_proxies_are_bounded_and_hide_none() -> None:
    reports = Reports()
    for number in range(1, 100):
        others = {field_of(f"false-{number}-{each}", "0000000c"): report(number) for each in range(100)}
        reports.note({ONE: report(number), **others}, 1000.0 + 2 * number, AT + 2 * number, is_whole=False)
        assert "proxy-1" in reports.proxies()
    assert len(reports.proxies()) == MAX_FIELDS


def test_proxy_is_forgotten_once_it_was_silent_for_long_and_seen_to_be() -> None:
    reports, long_ago = Reports(), AT - LEFT_SECONDS - 60
    reports.note({ONE: report(1, long_ago)}, 1000.0, AT, is_whole=True)
    # Its clock may be wrong.
    assert reports.old(1000.0) == []
    seen = {OWN: report(1), ONE: report(1, long_ago)}
    reports.note(seen, 1000.0 + GONE_SECONDS, AT + GONE_SECONDS, is_whole=True)
    assert reports.old(1000.0 + GONE_SECONDS) == [ONE]
    reports.note({ONE: report(2, long_ago)}, 1602.0, AT + 602, is_whole=True)
    assert reports.old(1602.0) == []


def test_status_lists_all_proxies_with_what_those_in_reach_carry(capsys: pytest.CaptureFixture[str]) -> None:
    load = Load(60_000_000, 5_000_000, 120, 31)
    known = {
        "proxy-1": KnownProxy(99.0, 100.0, "1.0.0", load),
        "proxy-2": KnownProxy(-500.0, 100.0, "1.0.0+deb12", load),
    }
    state = FleetState("proxy-1", exchanged_at=100.0, proxies=known)
    fleet_tables.show_proxies(output_console(), proxies(state, Now(101.0, AT)))
    _, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert first == ["proxy-1", "reachable", "2", "s", "ago", "1.0.0", "60.00", "Mb/s", "5.00", "Mb/s", "120", "31"]
    assert second == ["proxy-2", "gone", "10", "min", "ago", "1.0.0+deb12", "-", "-", "-", "-"]


def test_status_says_since_when_no_more_is_known_of_a_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    known = {"proxy-1": KnownProxy(99.0, 100.0, "1.0.0", Load(60_000_000))}
    state = FleetState("proxy-1", exchanged_at=900.0, proxies=known, list_problem="is no hash")
    fleet_tables.show_proxies(output_console(), proxies(state, Now(900.0, AT)))
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line == ["proxy-1", "reachable", "13", "min", "ago", "13", "min", "ago", "1.0.0", "-", "-", "-", "-"]
