"""What the daemon shares with its programs is as in the compiled objects: structures, enumerations, constants."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from struct import calcsize
from typing import Final, NamedTuple

import pytest
from btf import Btf, Kind, section

from mptcp_throttle import proxies, steering_mark
from mptcp_throttle.linux.c_layout import formats, size_of
from mptcp_throttle.model import Counting
from mptcp_throttled.kernel import allowances, networks_map, program_layout, reminder
from mptcp_throttled.kernel.sockets import program as socket_program
from mptcp_throttled.kernel.steering import program as steering_program
from mptcp_throttled.kernel.uplink import program as uplink_program
from mptcp_throttled.kernel.uplink import uplinks
from mptcp_throttled.vocabulary import allowances as vocabulary_allowances
from mptcp_throttled.vocabulary import traffic
from mptcp_throttled.vocabulary.counters import DiscardCounters, ProgramCounters, SteeringCounters, UplinkCounters

OBJECTS: Final = sorted(program_layout.OBJECTS.glob("*.bpf.o"))
SOURCES: Final = sorted(program_layout.OBJECTS.glob("*.bpf.c"))
LAYOUTS: Final[dict[str, type[NamedTuple]]] = {
    layout.__name__.lower(): layout
    for layout in vars(program_layout).values()
    if isinstance(layout, type) and layout.__module__ == program_layout.__name__
}
COUNTERS: Final = {
    "counter": ProgramCounters,
    "uplink_counter": UplinkCounters,
    "discards_counter": DiscardCounters,
    "steering_counter": SteeringCounters,
}
PRIVATE_MAPS: Final = {"connections", "standstills"}
"""The daemon reads nothing of them."""
SK_STORAGE: Final = 24
"""BPF_MAP_TYPE_SK_STORAGE (include/uapi/linux/bpf.h): the daemon reads nothing of what a program keeps at a socket."""


class Structure(NamedTuple):
    """Its size, and the offset and size of each member, in bytes."""

    size: int
    members: dict[str, tuple[int, int]]


def structure_in_c(btf: Btf, number: int) -> Structure:
    members = {name: (member.offset, btf.size(member.type)) for name, member in btf.members(number).items()}
    return Structure(btf.size(number), members)


def structure_in_python(layout: type[NamedTuple]) -> Structure:
    members, before = {}, ""
    for name, text in formats(layout).items():
        before += text
        members[name] = (calcsize(before) - calcsize(text), calcsize(text))
    return Structure(size_of(layout), members)


def shared_types(btf: Btf) -> dict[str, int]:
    """The structures and enumerations in maps, constants and the section of SHARED_WITH_DAEMON, by their names."""
    maps = [btf.members(number) for name, number in btf.variables(".maps").items() if name not in PRIVATE_MAPS]
    read = [members for members in maps if btf.length(btf.target(members["type"].type)) != SK_STORAGE]
    numbers = [btf.target(members[part].type) for members in read for part in ("key", "value") if part in members]
    numbers += btf.variables(".rodata").values()
    numbers += [btf.target(number) for number in btf.variables("shared").values()]
    return {btf.name(number): number for number in numbers if btf.kind(number) is not Kind.INT}


@pytest.fixture(scope="module")
def objects() -> dict[Path, Btf]:
    return {path: Btf(path) for path in OBJECTS}


def test_each_program_is_compiled(objects: dict[Path, Btf]) -> None:
    assert [path.with_suffix(".c") for path in objects] == SOURCES


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.stem)
def test_structures_are_those_of_the_object(objects: dict[Path, Btf], path: Path) -> None:
    btf = objects[path]
    in_c = {
        name: structure_in_c(btf, number)
        for name, number in shared_types(btf).items()
        if btf.kind(number) is Kind.STRUCT
    }
    assert in_c == {name: structure_in_python(LAYOUTS[name]) for name in in_c if name in LAYOUTS}


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.stem)
def test_constants_of_the_object_are_the_settings_alone(objects: dict[Path, Btf], path: Path) -> None:
    """The kernel refuses the settings if the compiler has put anything else in `.rodata`, such as an initial value."""
    has_settings = "settings" in objects[path].variables(".rodata")
    assert len(section(path, ".rodata")) == (size_of(program_layout.Settings) if has_settings else 0)


def test_each_structure_is_in_an_object(objects: dict[Path, Btf]) -> None:
    assert LAYOUTS.keys() <= {name for btf in objects.values() for name in shared_types(btf)}


def test_enumerations_are_those_of_the_objects(objects: dict[Path, Btf]) -> None:
    in_c = {
        name: btf.enumerators(number)
        for btf in objects.values()
        for name, number in shared_types(btf).items()
        if btf.kind(number) is Kind.ENUM
    }
    assert in_c.pop("told") == {told.name: told.value for told in uplink_program.Told}
    ailments = {number: name for name, number in in_c.pop("ailment").items()}
    assert ailments.pop(0) == "HEALTHY"
    assert ailments.keys() == socket_program._AILMENTS.keys()
    assert all(ailments[number].endswith(a.upper()) for number, a in socket_program._AILMENTS.items())
    counting = in_c.pop("counting")
    assert {allowances._COUNTS[kind] for kind in Counting} == {1, 2, 3}
    assert counting == {"COUNTS_DOWN": allowances._COUNTS[Counting.DOWN], "COUNTS_UP": allowances._COUNTS[Counting.UP]}
    assert in_c.pop("proxy_told") == {told.name: told.value for told in steering_program.Told}
    assert in_c.keys() == COUNTERS.keys()
    for name, kind in COUNTERS.items():
        indices = {index: enumerator for enumerator, index in in_c[name].items()}
        # `repeated` is ACKS_REPEATED, and `not_repeated` is ACKS_NOT_REPEATED.
        assert len(indices) == len(fields(kind))
        assert all(field.name.upper() in indices[index] for index, field in enumerate(fields(kind)))


def defined(header: str, name: str) -> int:
    """The number that a macro in a file of the programs stands for."""
    (number,) = re.findall(rf"^#define {name} (\w+)", (program_layout.OBJECTS / header).read_text(), re.MULTILINE)
    return int(number.rstrip("UL"), 0)


@pytest.mark.parametrize(
    ("header", "name", "number"),
    [
        ("settings.h", "NO_PREFERENCE", networks_map._NO_PREFERENCE),
        ("health.h", "SICK_HOLDS_NS", socket_program._SICK_HOLDS_NS),
        ("socket.h", "UNLIMITED", socket_program._UNLIMITED),
        ("uplink.h", "MAX_ASSIGNMENTS", uplink_program._MAX_ASSIGNMENTS),
        ("uplink.h", "FORGOTTEN", uplink_program._FORGOTTEN),
        ("uplink.h", "UNBOUNDED", uplink_program._UNBOUNDED.scale),
        ("token_bucket.h", "CREDIT_NS", reminder.REMIND_SECONDS * 1e9),
        ("steering.h", "MAX_STEERED", steering_program._SLOTS),
        ("steering.h", "ACK_MARK", steering_mark.MARK),
        ("steering.h", "ACK_MARK_MASK", steering_mark.MARK_MASK),
        ("steering.bpf.c", "VISITS", steering_program._VISITS),
        ("steering.bpf.c", "MAX_INTERFACES", proxies.MAX_INTERFACES),
        ("settings.h", "MAX_PROXIES", proxies.MAX_PROXIES),
        ("allowance_maps.h", "MAX_ALLOWANCES", vocabulary_allowances.MAX_ALLOWANCES),
        ("allowances.h", "TCP_HEADER_BYTES", traffic._TCP_WITH_TIME_STAMPS),
        ("allowances.h", "DSS_BYTES", traffic._DSS_WITHOUT_DATA),
        ("allowances.h", "DSS_WITH_DATA_BYTES", traffic._DSS_WITH_DATA),
    ],
)
def test_constants_are_those_of_the_source(header: str, name: str, number: float) -> None:
    assert defined(header, name) == number


def test_release_takes_as_long_as_the_repeats() -> None:
    repeats = defined("uplink.bpf.c", "MAX_REPEATS") * defined("uplink.bpf.c", "REPEAT_NS") / 1e9
    assert repeats < uplinks._RELEASE_SECONDS < 1.5 * repeats
