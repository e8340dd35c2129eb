"""Subflows are counted when something has changed, and not otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map
from loops import snapshot_of_two_networks

from mptcp_throttle.model import RateKind
from mptcp_throttled.answers.subflow_counts import CountedSubflows
from mptcp_throttled.vocabulary.snapshot import Snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return snapshot_of_two_networks(tmp_path)


def test_subflows_are_counted_by_network_and_rate_kind(snapshot: Snapshot) -> None:
    counts = CountedSubflows().of(snapshot)
    assert [counts.live(network) for network in ("ethernet", "wifi", None)] == [1, 2, 1]
    assert [counts.throttled(network) for network in ("ethernet", "wifi")] == [1, 0]
    assert counts.kinds == {RateKind.CAP: 1}


def test_subflows_are_counted_again_after_each_change(snapshot: Snapshot) -> None:
    counted = CountedSubflows()
    before = counted.of(snapshot)
    assert counted.of(replace(snapshot, errors=("any",))) is before
    assert counted.of(replace(snapshot, decisions=Map())).downlinks == {}
    assert counted.of(replace(snapshot, throttled=Map())).kinds == {}
    assert counted.of(snapshot) == before
