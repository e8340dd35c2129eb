"""The assignments that `NftClassifier` reports are values: neither readers nor later reads change them."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest
from examples import ends

from mptcp_throttled.kernel.classes.iptables import OwnChain
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.nft_elements import encode_map_element
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.vocabulary.kernel_state import AssignmentState

ONE, TWO = ends("10.9.31.74", 33041), ends("10.9.31.74", 33042)
FOREIGN: Final = encode_map_element(TWO, 3)[:-4] + bytes.fromhex("0200514d")  # the class of another HTB


@pytest.fixture
def elements(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The elements of the kernel's only map, whose table is as we make it."""
    present = [encode_map_element(ONE, 0xD32)]
    monkeypatch.setattr(OwnTables, "generation", lambda _: 1)
    monkeypatch.setattr(OwnTables, "is_as_made", lambda _, version: True if version == 4 else None)
    monkeypatch.setattr(OwnTables, "elements", lambda _tables, _version: iter(present))
    monkeypatch.setattr(OwnChain, "read", lambda _chain, _parse: None)
    return present


def test_assignments_that_were_read_stay_when_the_map_changes(elements: list[bytes]) -> None:
    classifier = NftClassifier()
    before = classifier.read()[4]
    elements[:] = [encode_map_element(TWO, 0xD32)]
    assert (before, classifier.read()[4]) == (AssignmentState({ONE: 0xD32}), AssignmentState({TWO: 0xD32}))


def test_map_is_altered_while_it_has_an_element_that_is_not_ours(elements: list[bytes]) -> None:
    classifier = NftClassifier()
    elements.append(FOREIGN)
    assert classifier.read()[4] == AssignmentState({ONE: 0xD32}, altered=True)
    elements.remove(FOREIGN)
    assert classifier.read()[4] == AssignmentState({ONE: 0xD32})


def test_element_that_a_changing_map_has_listed_twice_is_read_again(elements: list[bytes]) -> None:
    classifier = NftClassifier()
    old, new = encode_map_element(ONE, 2), encode_map_element(ONE, 3)
    for left in (old, new):
        elements[:] = [old, new]
        assert classifier.read()[4].altered
        elements[:] = [left]
        assert classifier.read()[4] == AssignmentState({ONE: 2 if left is old else 3})
    elements[:] = [old, new]
    classifier.read()
    elements[:] = []
    assert classifier.read()[4] == AssignmentState({})


@pytest.mark.usefixtures("elements")
def test_assignments_cannot_be_changed_by_their_reader() -> None:
    classifier = NftClassifier()
    with pytest.raises(TypeError):
        cast("dict[Any, int]", classifier.read()[4].assignments)[TWO] = 9
    assert classifier.read() == {4: AssignmentState({ONE: 0xD32})}
