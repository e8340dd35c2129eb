import re
from pathlib import Path

import pytest

from mptcp_lab.scenario import scenario_schema as schema
from mptcp_lab.scenario.files import Experiment, available, chosen, load, scaled
from mptcp_lab.scenario.plan import player_arguments, traced
from mptcp_lab.scenario.quantities import Moment
from mptcp_lab.scenario.scenario_schema import Kernel
from mptcp_lab.scenario.seed_section import Cited
from mptcp_lab.video import wifi_trace
from mptcp_throttle.config.validation import Section
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.units import Rate

DOCUMENT = (Path(__file__).parents[2] / "docs/contribute/lab.md").read_text()

GOOD = """\
title: two links
seed: {document: S2, lines: [617], finding: what the seed found}
duration: 10s
hosts:
  a: {}
  b: {endpoints: {eth1: [signal]}}
links:
  one: {ends: [a.eth0, b.eth0], rate: 5mbit}
  two: {ends: [a.eth1, b.eth1], rate: 5mbit}
flows:
  mptcp: {from: a, to: b}
report:
  total: {rate: [one, two], from: 2s, seed: 9.8 @ 617}
"""


def written(directory: Path, text: str, name: str = "x.yaml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def loaded(directory: Path, text: str) -> tuple[Experiment, ...]:
    return load("set/x", written(directory, text))


def problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, text)
    return [problem.replace(f"{directory}/", "") for problem in caught.value.problems]


def test_hidden_file_is_no_scenario(tmp_path: Path) -> None:
    (tmp_path / "s0").mkdir()
    for name in ("a.yaml", ".#a.yaml", "._a.yaml"):
        (tmp_path / "s0" / name).touch()
    assert [*available(tmp_path)] == ["s0/a"]


@pytest.mark.parametrize("name", available())
def test_project_scenarios_are_valid_and_say_what_the_seed_found(name: str) -> None:
    experiments = load(name, available()[name])
    of_seed = [e.scenario.seed for e in experiments if re.match(r"s\d", name)]
    assert all(seed is not None and seed.document == name[:2].upper() for seed in of_seed)
    assert all(experiment.scenario.report for experiment in experiments)


def test_project_has_the_demo_five_seeds_uploads_servers_and_policies() -> None:
    seeds = {"s0", "s1", "s2", "s3", "s4"}
    assert {name.split("/")[0] for name in available()} == {"demo", *seeds, "servers", "uplink", "policies"}


def test_load_fills_in_defaults(tmp_path: Path) -> None:
    (experiment,) = loaded(tmp_path, GOOD)
    assert experiment.name == "set/x"
    assert experiment.scenario.links["one"].mtu == 1500
    assert experiment.scenario.report["total"].seed == Cited(9.8, 1, 617)
    assert experiment.scenario.report["total"].unit == "Mb/s"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rate: 5mbit}\n  two", "rate: 5mbps}\n  two", "8: links.one.rate: '5mbps': is not a rate; allowed: a number"),
        (
            "  a: {}",
            "  a: {forwards: true}",
            "5: hosts.a.forwards: true: unknown key; allowed: addresses, endpoints, families",
        ),
        ("to: b}", "to: b, form: a}", "11: flows.mptcp.form: 'a': unknown key; allowed: check, duration, family, from"),
        ("  a: {}", "  a: {families: [5]}", "5: hosts.a.families: allowed: 4, 6 or both"),
        ("  a: {}", "  a: {qdiscs: {eth7: pfifo}}", "5: hosts.a.qdiscs.eth7: 'pfifo': no such interface; allowed:"),
        ("a.eth0, b.eth0],", "a.eth0, b.eth0], bridged: true,", "8: links.one.bridged: 'true': needs an end at"),
        ("to: b}", "to: d}", "11: flows.mptcp.to: 'd': no such host; allowed: a, b"),
        ("eth1: [signal]", "eth7: [signal]", "6: hosts.b.endpoints.eth7: no such interface; allowed: eth0, eth1"),
        ("[signal]", "[signal, loud]", "6: hosts.b.endpoints.eth1[1]: 'loud': allowed: subflow, signal, backup"),
        ("a.eth1", "a.eth0", "9: links.two.ends[0]: 'a.eth0': is an end of another link; allowed:"),
        ("a.eth1", "a", "9: links.two.ends[0]: 'a': allowed: HOST.INTERFACE, each up to 7"),
        ("[one, two]", "[one, three]", "13: report.total.rate: no such link: three; allowed: one, two"),
        ("seed: 9.8 @ 617", "seed: a lot", "13: report.total.seed: 'a lot': allowed: NUMBER @ LINE, or"),
        ("total: {rate: [one, two],", "total: {", "13: report.total: allowed: exactly one of rate, volume"),
        ("duration: 10s", "duration: 10", "3: duration: 10: is not a duration; allowed: a number with ms"),
        ("title: two links\n", "", "1: title: is required"),
        ("flows:\n  mptcp: {from: a, to: b}", "flows: [a]", "10: flows: ['a']: is not a mapping; allowed:"),
        ("rate: 5mbit}\nflows", "jitter: 1ms, delay: 2ms}\nflows", "9: links.two.jitter: '1ms': needs a rate"),
        ("rate: 5mbit}\nflows", "mtu: 1000}\nflows", "9: links.two.mtu: '1000': is too small for IPv6; allowed:"),
        ("[one, two], from: 2s", "[one], window: w", "13: report.total.window: 'w': no such window; allowed: none"),
        ("to: b}", "to: b, check: true}", "11: flows.mptcp.check: 'true': needs via"),
        (
            "to: b}",
            "to: b, size: 1MB, duration: 1s}",
            "11: flows.mptcp.size: '1MB': allowed: size or duration, and not for udp",
        ),
        ("to: b}", "to: b, size: 1MB, protocol: udp, rate: 1mbit}", "11: flows.mptcp.size: '1MB': all"),
        ("rate: 5mbit}\nflows", "reorder: 5%}\nflows", "9: links.two.reorder: '5%': needs a delay"),
        ("rate: 5mbit}\nflows", "gap: 5}\nflows", "9: links.two.gap: '5': needs reorder"),
        ("rate: 5mbit}\nflows", "lossy_ends: [a.eth1]}\nflows", "9: links.two.lossy_ends: needs a loss"),
        (
            "rate: 5mbit}\nflows",
            "loss: 1%, lossy_ends: [a.eth0]}\nflows",
            "9: links.two.lossy_ends: a.eth0 is no end of it; allowed: a.eth1, b.eth1",
        ),
        (
            "rate: [one, two], from: 2s",
            "counter: b.TcpInSegs, per: c.TcpInSegs",
            "13: report.total.per: 'c.TcpInSegs': allowed: HOST.COUNTER",
        ),
        ("[one, two],", "[one], without: b.TcpInSegs,", "13: report.total.without: 'b.TcpInSegs': needs per"),
        ("[one, two],", "[one], per: b.TcpInSegs,", "13: report.total.per: 'b.TcpInSegs': needs counter"),
        ("rate: [one, two]", "out_of_order: tcp", "13: report.total.out_of_order: 'tcp': no such name"),
        ("to: b}", "to: b, protocol: udp}", "11: flows.mptcp.rate: is for udp, which needs it"),
    ],
)
def test_load_refuses_a_mistake_with_file_line_and_reason(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in GOOD
    (found,) = problems(tmp_path, GOOD.replace(old, new))
    assert found.startswith(f"x.yaml:{problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("events:\n  - {at: 1s}\n", "15: events[0]: allowed: exactly one of down, up, leave"),
        ("events:\n  - {at: 1s, down: c.eth0}\n", "15: events[0].down: 'c.eth0': no such end of a link; allowed:"),
        ("events:\n  - {at: 1s, link: one}\n", "15: events[0].link: 'one': allowed: a link (one, two), with one"),
        ("events:\n  - {at: 1s, throttle: pause}\n", "15: events[0].throttle: 'pause': no host runs throttle"),
        ("expect:\n  more: {of: sum, at_least: 1}\n", "15: expect.more.of: 'sum': no such figure; allowed: total"),
        ("expect:\n  more: {of: total}\n", "15: expect.more: allowed: at_least, at_most or both"),
        (
            "events:\n  - {at: late, down: a.eth0}\n",
            "15: events[0].at: 'late': no such event before this one; allowed: none",
        ),
        ("events:\n  - {at: 1s 2s, down: a.eth0}\n", "15: events[0].at: '1s 2s': is not a moment; allowed:"),
        ("until: cap + 1s\n", "14: until: 'cap + 1s': no such event; allowed: none"),
        ("windows: {w: {from: 3s, to: 2s}}\n", "14: windows.w.to: '2s': is not after from"),
        ("expect:\n  it: {of: total, near: 1, at_most: 2}\n", "15: expect.it: allowed: at_least, at_most or both"),
        ("combined: {a: {}}\n", "14: combined: allowed: only beside vary"),
        ("vary: [{a: {}}, {b: {}}]\ncombined: {b-a: {}}\n", "15: combined: 'b-a': no such variant; allowed"),
        ("vary: [{a: {}, a-b: {}}, {b-c: {}, c: {}}]\n", "14: vary: two variants would be called 'a-b-c'"),
        ("vary: []\n", "14: vary: []: allowed: a mapping of variants"),
        ("vary: [{a: {}}, 3]\n", "14: vary[1]: 3: allowed: a mapping of variants"),
        ("vary: {}\n", "14: vary: {}: allowed: a mapping of variants"),
        ("vary:\n  a b: {}\n", "15: vary: 'a b': allowed: letters, digits"),
        ("vary:\n  one:\n    links: {one: {rate: 1}}\n", "16: links.one.rate: 1: is not a rate; allowed:"),
    ],
)
def test_load_checks_events_expectations_variants_and_bases(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems(tmp_path, GOOD + text)
    assert found.startswith(f"x.yaml:{problem}")


SWITCHES = (Path(__file__).parent / "plans/switches.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("{recovery: reroute}", "{recovery: magic}", "16: controller.recovery: 'magic': allowed: none, reroute"),
        ("controller: {recovery: reroute}\n", "", "1: controller: allowed: if and only if a host is a switch"),
        ("two: {node: ovs}", "two: {node: ovs, forward: true}", "6: hosts.two: a switch (node: ovs) has no other key"),
        ("[a.eth0, one.host], families: [4]", "[a.eth0, one.host]", "11: links.a.families: allowed: [4], where hosts"),
        ("{node: ovs}\n  a", "{}\n  a", "7: hosts.three: allowed: one interface, where other hosts are switches"),
        ("outage: direct", "outage: a", "20: events[0].outage: 'a': allowed: a link between switches; allowed: direct"),
        (", seconds: 100ms", "", "20: events[0]: allowed: outage and seconds together"),
        ("outage: direct, seconds: 100ms", "down: one.two", "20: events[0].down: 'one.two': is an end at a switch"),
        ("eth0: 2}", "eth0: 3}", "8: hosts.a.addresses.eth0: 3: allowed: a whole number from 1 to 2"),
        ("eth0: 2}", "eth1: 2}", "8: hosts.a.addresses.eth1: '2': no such interface; allowed: eth0"),
        ("report: {}", "report: {f: {outage_length: o}}", "22: report.f.outage_length: 'o': no such name"),
        ("report: {}", "report: {f: {completion: 50}}", "22: report.f.completion: '50': needs flows with a size"),
    ],
)
def test_load_refuses_mistakes_about_switches(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in SWITCHES
    (found, *_) = problems(tmp_path, SWITCHES.replace(old, new))
    assert found.startswith(f"x.yaml:{problem}")


THROTTLED = """\
title: a client and a proxy
duration: 10s
hosts: {ue: {}, proxy: {server: squid, run: [throttle]}, origin: {run: [origin]}}
links:
  lte: {ends: [ue.eth0, proxy.eth0], rate: 8mbit}
  origin: {ends: [ue.eth1, origin.eth0], rate: 8mbit}
throttle:
  clock: 2027-01-10 12:00:00
  networks: {lte: {link: lte, preference: 1, cap: 1mbit}}
  devices: {phone: {host: ue, networks: {lte: {cap: 4mbit}}}}
flows: {x: {from: origin, to: ue, via: proxy}}
events:
  - {at: 2s, clock: 2027-02-14 23:59:58}
report: {}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  clock: 2027-01-10 12:00:00\n", "", "12: events[0].clock: '2027-02-14 23:59:58': needs throttle.clock"),
        ("10 12:00:00", "10T12:00", "8: throttle.clock: '2027-01-10T12:00': is not a time of a clock; allowed: a date"),
        ("host: ue", "host: me", "10: throttle.devices.phone.host: 'me': no such host; allowed: ue, proxy, origin"),
        ("host: ue", "host: origin", "10: throttle.devices.phone.networks.lte: no network of a link of the host"),
        ("{lte: {cap", "{wifi: {cap", "10: throttle.devices.phone.networks.wifi: no network of a link of the host"),
        ("report: {}", "report: {f: {used: wifi}}", "14: report.f.used: 'wifi': no such name; allowed: lte"),
    ],
)
def test_load_refuses_mistakes_about_clocks_and_devices(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert loaded(tmp_path, THROTTLED)
    assert old in THROTTLED
    (found, *_) = problems(tmp_path, THROTTLED.replace(old, new))
    assert found.startswith(f"x.yaml:{problem}")


PLAYED = """\
title: a video
duration: 10s
hosts: {ue: {}, proxy: {server: squid}, origin: {run: [origin]}}
links:
  wifi: {ends: [ue.eth0, proxy.eth0], trace: 1}
  origin: {ends: [ue.eth1, origin.eth0], rate: 8mbit}
flows:
  x: {from: origin, to: ue, via: proxy, video: 8s}
  y: {from: origin, to: ue}
report:
  least: {least_volume: x}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("via: proxy, ", "", "8: flows.x.video: '8s': allowed: from origin, via a server that is an HTTP proxy"),
        ("8s}", "8s, duration: 9s}", "8: flows.x.video: '8s': allowed: without size, duration and check"),
        ("trace: 1", "rate: 8mbit", "11: report.least.least_volume: 'x': needs one link with a trace"),
        ("least_volume: x", "stalls: y", "11: report.least.stalls: 'y': allowed: a flow with a video"),
        ("report:", "until: 9s\nreport:", "10: until: '9s': allowed: only without flows with a size or a video"),
    ],
)
def test_load_refuses_mistakes_about_videos(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert loaded(tmp_path, PLAYED)
    assert old in PLAYED
    (found, *_) = problems(tmp_path, PLAYED.replace(old, new))
    assert found.startswith(f"x.yaml:{problem}")


def test_trace_gives_each_run_another_first_rate(tmp_path: Path) -> None:
    (experiment,) = loaded(tmp_path, PLAYED)
    links = [traced(experiment.scenario, number).links for number in (1, 2)]
    assert [each["wifi"].trace for each in links] == [1, 2]
    assert [each["wifi"].rate for each in links] == [Rate(wifi_trace(seed, 1)[0].rate) for seed in (1, 2)]
    assert [str(each["origin"].rate) for each in links] == ["8mbit", "8mbit"]


def test_player_is_told_proxy_protocol_and_segments(tmp_path: Path) -> None:
    (experiment,) = loaded(tmp_path, PLAYED.replace("video: 8s", "video: 9s, protocol: tcp, over: wifi"))
    arguments = player_arguments(experiment.scenario, "x", ["low", "high"])
    expected = ["10.1.0.2", "8080", "--from", "10.1.0.1", "--tcp", "--segments", "3", "low", "high"]
    assert arguments[1:] == ["-m", "mptcp_lab.player", *expected]


def test_load_refuses_a_reference_to_an_unknown_variant(tmp_path: Path) -> None:
    text = GOOD + "vary:\n  slow:\n    expect:\n      half: {of: total, to: fast/total, at_most: 1}\n"
    assert problems(tmp_path, text) == ["x.yaml:17: expect.half.to: 'fast/total': no variant has such a figure"]


@pytest.mark.parametrize(
    ("base", "line"),
    [
        ("nowhere.yaml", "nowhere.yaml: cannot be read: No such file or directory"),
        ("x.yaml", "is one base too many"),
        ("base.yaml", "base.yaml:8: links.one.rate: 'fast'"),
    ],
)
def test_load_refuses_a_base_that_is_missing_circular_or_wrong(tmp_path: Path, base: str, line: str) -> None:
    written(tmp_path, GOOD.replace("5mbit}\n  two", "fast}\n  two"), "base.yaml")
    (problem,) = problems(tmp_path, f"base: {base}\ntitle: mine\n")
    assert line in problem


def test_load_lays_variants_over_the_file_and_the_file_over_its_base(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "base.yaml")
    text = "base: base.yaml\ntitle: mine\nvary:\n  slow:\n    links: {one: {rate: 1mbit}, two: null}\n"
    text += "    hosts: {b: {endpoints: null}}\n    report: {total: {rate: [one]}}\n  fast: {}\n"
    slow, fast = loaded(tmp_path, text)
    assert (slow.name, fast.name) == ("set/x:slow", "set/x:fast")
    assert slow.scenario.title == "mine"
    assert list(slow.scenario.links) == ["one"]
    assert str(slow.scenario.links["one"].rate) == "1mbit"
    assert slow.scenario.report["total"].seed == Cited(9.8, 1, 617)
    assert list(fast.scenario.links) == ["one", "two"]


def test_load_makes_a_variant_of_each_choice_from_every_mapping(tmp_path: Path) -> None:
    vary = "vary:\n- slow: {links: {one: {rate: 1mbit}}}\n  fast: {}\n"
    vary += "- alone: {links: {two: null}, hosts: {b: {endpoints: null}}, report: null}\n  both: {}\n"
    written(tmp_path, GOOD + vary, "base.yaml")
    text = "base: base.yaml\ntitle: mine\nreport: {one: {rate: [one]}}\n"
    text += "combined:\n  slow-both: {report: {total: {seed: 1 @ 617}}}\n  fast-alone: {report: {one: {rate: [one]}}}\n"
    with pytest.raises(ConfigError, match=r"report: is required"):
        loaded(tmp_path, text)
    written(tmp_path, GOOD + vary.replace(", report: null", ", report: {total: null}"), "base.yaml")
    found = {experiment.variant: experiment.scenario for experiment in loaded(tmp_path, text)}
    assert list(found) == ["slow-alone", "slow-both", "fast-alone", "fast-both"]
    assert [str(scenario.links["one"].rate) for scenario in found.values()] == ["1mbit", "1mbit", "5mbit", "5mbit"]
    assert [len(scenario.links) for scenario in found.values()] == [1, 2, 1, 2]
    assert [s.report["total"].seed for s in found.values() if "total" in s.report] == [
        Cited(1, 1, 617),
        Cited(9.8, 1, 617),
    ]


def test_chosen_finds_scenarios_by_set_name_variant_and_file(tmp_path: Path) -> None:
    (tmp_path / "s9").mkdir()
    written(tmp_path / "s9", GOOD + "vary: {a: {}, b: {}}\n", "one.yaml")
    path = written(tmp_path / "s9", GOOD + "kernel: debian-6.1\n", "two.yaml")

    def names(*wanted: str) -> list[str]:
        return [experiment.name for experiment in chosen(wanted, tmp_path)]

    assert names("s9") == ["s9/one:a", "s9/one:b", "s9/two"]
    assert names("s9/one:b", "s9/one:b") == ["s9/one:b"]
    assert chosen([str(path)], tmp_path)[0].scenario.kernel is Kernel.DEBIAN_6_1
    with pytest.raises(ConfigError, match=r"s8: no such scenario; allowed: a set \(s9\)"):
        names("s8")
    with pytest.raises(ConfigError, match="s9/one:c: no such variant; allowed: a, b"):
        names("s9/one:c")


def test_scaled_changes_times_and_sizes_only(tmp_path: Path) -> None:
    text = GOOD.replace("to: b}", "to: b, start: 4s}") + "events:\n  - {at: 6s, link: one, delay: 100ms}\n"
    scenario = scaled(loaded(tmp_path, text)[0].scenario, 0.5)
    assert (scenario.duration, scenario.flows["mptcp"].start, scenario.events[0].at) == (5.0, 2.0, Moment(3.0))
    assert (scenario.report["total"].begin, scenario.report["total"].end) == (Moment(1.0), None)
    assert (scenario.events[0].delay, scenario.interval) == (0.1, 0.1)


def test_document_has_a_valid_example(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    (experiment,) = loaded(tmp_path, example)
    assert experiment.scenario.events[0].down == ("a", "eth1")


def test_document_explains_every_key() -> None:
    sections = [item for item in vars(schema).values() if isinstance(item, type) and issubclass(item, Section)]
    keys = {field.alias or name for section in sections for name, field in section.model_fields.items()}
    prose = re.sub(r"^```.*?^```", "", DOCUMENT, flags=re.DOTALL | re.MULTILINE)
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]+`", prose))))
    assert keys - words == set()
    assert len(keys) > 50
