"""The records of saved qdiscs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mptcp_throttle.linux.netlink_codec import attribute, attributes
from mptcp_throttled.kernel.htb.saved import SavedQdiscs, SavedQdiscStore, differences, request_for, tree_of
from mptcp_throttled.kernel.tc import Qdisc

RECORDED = SavedQdiscs((Qdisc("pfifo", 0x50000, 0xFFFFFFFF, bytes(4)),), restoring=True)


def test_saved_qdisc_is_loaded_until_forgotten(tmp_path: Path) -> None:
    records = SavedQdiscStore(tmp_path)
    records.write(2, RECORDED)
    assert (records.indices(), records.load(2)) == ([2], RECORDED)
    records.forget(2)
    assert (records.indices(), records.load(2)) == ([], None)


def test_saved_qdisc_load_raises_if_the_record_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "original-qdisc-2.json").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        SavedQdiscStore(tmp_path).load(2)


def test_saved_qdisc_write_does_not_follow_a_symlink(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "original-qdisc-2.new").symlink_to(secret)
    SavedQdiscStore(tmp_path).write(2, RECORDED)
    assert (secret.read_text(), SavedQdiscStore(tmp_path).load(2)) == ("secret", RECORDED)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 99}', "[1]", '{"version": 1, "restoring": true, "qdiscs": [{}]}']
)
def test_saved_qdisc_load_ignores_a_malformed_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "original-qdisc-2.json").write_text(text, encoding="ascii")
    assert SavedQdiscStore(tmp_path).load(2) is None


@pytest.mark.parametrize(
    "impossible",
    [RECORDED.qdiscs[0]._replace(**field) for field in ({"kind": "\ud800"}, {"handle": 2**32}, {"parent": -1})],
)
def test_saved_qdisc_load_ignores_a_record_that_cannot_be_added(tmp_path: Path, impossible: Qdisc) -> None:
    records = SavedQdiscStore(tmp_path)
    records.write(2, SavedQdiscs((impossible,)))
    assert records.load(2) is None


MQ = Qdisc("mq", 0x10000, 0xFFFFFFFF, None)
LEAVES = tuple(Qdisc("pfifo", number << 16, 0x10000 + number, bytes(400)) for number in range(2, 66))


def test_qdisc_that_is_listed_below_itself_is_in_the_tree_once() -> None:
    root, below = Qdisc("htb", 0x10000, 0xFFFFFFFF, None), Qdisc("prio", 0x10000, 0x10001, None)
    assert tree_of([root, below]) == (root, below)


def test_times_of_another_length_are_left_as_they_were_saved() -> None:
    saved = Qdisc("pie", 0x10000, 0xFFFFFFFF, attribute(1, b"12"))
    assert request_for(saved) == saved


def test_qdiscs_in_another_order_do_not_differ() -> None:
    assert differences((MQ, *LEAVES), (MQ, *reversed(LEAVES))) == ""
    assert differences((*LEAVES, MQ), (MQ, *LEAVES)) == ""


def test_differences_of_qdiscs_are_named_and_bounded() -> None:
    moved, tuned = LEAVES[0]._replace(parent=0x10009), LEAVES[1]._replace(kind="fq", options=b"")
    assert differences((MQ, *LEAVES[:2]), (MQ, tuned, moved)) == "different fq 3: (kind, options), pfifo 2: (parent)"
    assert differences((MQ, *LEAVES), (MQ,)) == "missing pfifo 2:, pfifo 3:, pfifo 4: and 61 more"
    assert differences((MQ, LEAVES[5]), (MQ, LEAVES[6])) == "missing pfifo 7:; added pfifo 8:"
    changed = [leaf._replace(options=None) for leaf in LEAVES]
    assert len(differences((MQ, *LEAVES), (MQ, *changed, *(q._replace(handle=q.handle << 7) for q in LEAVES)))) < 200


def shown(kind: str, unit: int, options: dict[int, int]) -> Qdisc:
    """A qdisc that the kernel was given these times, in microseconds, and counts in `unit` nanoseconds."""
    times = {type_: time * 1000 // unit * unit // 1000 for type_, time in options.items()}
    payload = b"".join(attribute(type_, time.to_bytes(4, sys.byteorder)) for type_, time in times.items())
    return Qdisc(kind, 0x70000, 0xFFFFFFFF, payload + attribute(2, bytes(4)))


@pytest.mark.parametrize(
    ("kind", "unit", "types"), [("codel", 1024, (1, 3, 5)), ("fq_codel", 1024, (1, 3, 7)), ("pie", 64, (1,))]
)
def test_times_that_the_kernel_rounds_are_restored(kind: str, unit: int, types: tuple[int, ...]) -> None:
    for time in (*range(2000), 5000, 100_000, (1 << 32) - 1):
        saved = shown(kind, unit, dict.fromkeys(types, time))
        options = attributes(request_for(saved).options or b"")
        assert options[2] == bytes(4)
        given = {type_: int.from_bytes(options[type_], sys.byteorder) for type_ in types}
        assert shown(kind, unit, given) == saved, time


@pytest.mark.parametrize("saved", [MQ, *RECORDED.qdiscs, MQ._replace(kind="fq_codel")])
def test_qdisc_without_such_times_is_added_as_it_was_saved(saved: Qdisc) -> None:
    assert request_for(saved) == saved
