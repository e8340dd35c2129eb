from __future__ import annotations

import cbpf_interpreter
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mptcp_throttle.linux import cbpf
from mptcp_throttle.linux.c_layout import unpack
from mptcp_throttle.linux.cbpf import Line, assemble, jump_by_port
from mptcp_throttle.ports import ALL_PORTS, Ports, parse_range
from mptcp_throttle.proxies import Proxies, Proxy
from mptcp_throttled.kernel.program_layout import Settings, pack_settings

low, high = st.integers(1, 40), st.integers(65500, 65535)
some_range = (st.tuples(low, low) | st.tuples(high, high)).map(lambda ends: range(min(ends), max(ends) + 1))
ranges = st.lists(some_range, max_size=12).map(tuple)
NEARLY_ALL = (range(20, 65520),)
"""Only in some examples: each takes as long as a thousand others."""
SAMPLES = [*range(60), *range(65490, 65536)]


@example((range(5, 10), *NEARLY_ALL, range(65519, 65530)))
@given(ranges)
def test_ports_are_those_of_the_ranges_merged_and_ascending(given_ranges: tuple[range, ...]) -> None:
    ports = Ports(given_ranges)
    expected = {port for each in given_ranges for port in each}
    assert list(ports) == sorted(expected)
    assert (len(ports), bool(ports)) == (len(expected), bool(expected))
    assert [port in ports for port in SAMPLES] == [port in expected for port in SAMPLES]
    assert all(first.stop < second.start for first, second in zip(ports.ranges, ports.ranges[1:], strict=False))
    assert ports == Ports.of(expected) == Ports.parse(ports.items)
    assert hash(ports) == hash(Ports.of(expected))


@example(NEARLY_ALL, (range(5, 30), range(100, 65530)))
@given(ranges, ranges)
def test_ports_are_combined_as_sets(first: tuple[range, ...], second: tuple[range, ...]) -> None:
    one, two = Ports(first), Ports(second)
    assert set(one | two) == set(one) | set(two)
    assert set(one & two) == set(one) & set(two)
    assert set(one - two) == set(one) - set(two)
    assert ALL_PORTS - (ALL_PORTS - one) == one


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([8080, "20000-29999"], "8080, 20000-29999"),
        (["20000-29999", "8080"], "8080, 20000-29999"),
        ([3, 2, 1], "1-3"),
        ([443, 444], "443, 444"),
        (["8080-8080"], "8080"),
        (["1-65535"], "1-65535"),
        ([], ""),
    ],
)
def test_ports_are_shown_as_a_configuration_has_them(items: list[object], shown: str) -> None:
    assert str(Ports.parse(items)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "65536",
        "a",
        "-1",
        "1-",
        "2-1",
        "0-5",
        "1-65536",
        "1-2-3",
        "1:2",
        "1 - 2",
        "٣",
        "True",
        "8080.0",
        "1-010",
    ],
)
def test_text_that_names_no_ports_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^allowed: a port from 1 to 65535, or a range of ports such as 20000-29999$"):
        parse_range(text)


@pytest.mark.parametrize("text", ["010", "0x50", "0b1010000", "02000-29999"])
def test_port_that_is_not_decimal_is_refused_and_the_error_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is not decimal, or has a 0 in front; allowed: a port from 1 to 65535, "):
        parse_range(text)


def program(ports: Ports) -> tuple[cbpf.Instruction, ...]:
    lines = jump_by_port(ports, "inside", "outside")
    return assemble(
        [Line(cbpf.LDH_ABS, 0), *lines, "outside", Line(cbpf.RET, 0), "inside", Line(cbpf.RET, 2)],
    )


def executed(instructions: tuple[cbpf.Instruction, ...], port: int) -> tuple[bool, int]:
    """Whether the program has found the port, and how many instructions it took, without the load and the return."""
    taken: set[tuple[int, int]] = set()
    kept = cbpf_interpreter.run(instructions, port.to_bytes(2), taken)
    return kept > 0, len(taken) - 1


@example((range(5, 10), *NEARLY_ALL, range(65525, 65530)))
@given(ranges)
def test_search_of_a_filter_finds_these_ports_and_no_others(given_ranges: tuple[range, ...]) -> None:
    ports = Ports(given_ranges)
    instructions = program(ports)
    cbpf_interpreter.check(instructions)
    assert {port for port in SAMPLES if executed(instructions, port)[0]} == {port for port in SAMPLES if port in ports}


@pytest.mark.parametrize(
    ("count", "width", "most", "length"),
    [(1, 1, 1, 1), (1, 10000, 2, 2), (2, 100, 3, 4), (16, 1, 5, 31), (64, 1, 7, 127), (64, 100, 8, 128)],
)
def test_search_of_a_filter_takes_up_to_8_instructions(count: int, width: int, most: int, length: int) -> None:
    ports = Ports(tuple(range(1000 * n, 1000 * n + width) for n in range(1, count + 1)))
    instructions = program(ports)
    bounds = [port for each in ports.ranges for port in (each[0] - 1, each[0], each[-1], each[-1] + 1)]
    assert (max(executed(instructions, port)[1] for port in bounds), len(instructions) - 3) == (most, length)


@pytest.mark.parametrize("items", [[], [1], [65535], [8080, "20000-29999"], ["1-65535"]])
def test_settings_of_programs_have_the_proxy_of_each_port(items: list[object]) -> None:
    ports = Ports.parse(items)
    names = {"guests": ALL_PORTS - ports - Ports.of([0]), "work": ports}
    settings = pack_settings(0, Proxies({name: Proxy((), each) for name, each in names.items()}), 0)
    numbers = unpack(Settings, settings).proxies
    assert numbers == bytes([0, *(2 if port in ports else 1 for port in range(1, 65536))])
