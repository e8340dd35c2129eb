"""The requests that we encode mean to pyroute2's decoder what they mean to us."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST
from pyroute2.netlink.rtnl import TC_H_ROOT
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from mptcp_throttle.linux.netlink_codec import attributes, pack
from mptcp_throttle.linux.netlink_socket import Request
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.interfaces import Interface
from mptcp_throttled.kernel.tc import Qdisc, add_class, add_qdisc, delete_class, parse_message
from mptcp_throttled.vocabulary import class_ids

ETH0 = Interface(7, "eth0")
RATE = Rate(8_000_000)


def decode(kind: type[Any], request: Request) -> Any:  # noqa: ANN401
    message = kind(pack(request.type, request.flags | NLM_F_REQUEST | NLM_F_ACK, 1, request.payload))
    message.decode()
    return message


@pytest.mark.parametrize(("change", "flags"), [(False, NLM_F_CREATE | NLM_F_EXCL), (True, 0)])
def test_add_class_asks_for_an_htb_class_below_the_root(change: bool, flags: int) -> None:
    request = add_class(ETH0, class_ids.classid(2), htb.class_options(RATE), RATE, change=change)
    message = decode(tcmsg, request)
    assert (message["index"], message["handle"], message["parent"]) == (7, 0x4D50_0002, 0x4D50_0000)
    assert message.get_attr("TCA_KIND") == "htb"
    parameters = message.get_nested("TCA_OPTIONS", "TCA_HTB_PARMS")
    assert parameters["rate"] == parameters["ceil"] == 1_000_000
    assert request.flags == flags


@pytest.mark.parametrize("text", ["1kbit", "7kbit", "34gbit", "40gbit", "100gbit"])
def test_class_has_each_rate_that_is_allowed(text: str) -> None:
    rate = Rate.parse(text)
    options = htb.class_options(rate)
    assert htb.rate_of(options) == rate
    message = decode(tcmsg, add_class(ETH0, class_ids.classid(2), options, rate))
    parameters = message.get_nested("TCA_OPTIONS", "TCA_HTB_PARMS")
    assert parameters["rate"] == parameters["ceil"] == min(rate.bytes_per_second, 2**32 - 1)
    wide = rate.bytes_per_second.to_bytes(8, sys.byteorder) if rate.bytes_per_second >= 2**32 else None
    assert [attributes(options).get(type_) for type_ in (6, 7)] == [wide, wide]


@pytest.mark.parametrize(("replace", "flag"), [(False, NLM_F_EXCL), (True, NLM_F_REPLACE)])
def test_add_qdisc_asks_for_the_leaf_of_a_class(replace: bool, flag: int) -> None:
    request = add_qdisc(ETH0, htb.leaf_qdisc(2), replace=replace)
    message = decode(tcmsg, request)
    assert (message["index"], message["handle"], message["parent"]) == (7, 0, 0x4D50_0002)
    assert message.get_attr("TCA_KIND") == "pfifo"
    assert request.flags == NLM_F_CREATE | flag


@pytest.mark.parametrize(
    "qdisc",
    [
        htb.root_qdisc(1),
        Qdisc("pfifo_fast", 0x8001_0000, TC_H_ROOT, None),
        Qdisc("fq_codel", 0x8002_0000, 0x8001_0001, b"\x08\x00\x01\x00\x88\x13\x00\x00"),
    ],
)
def test_swapped_qdiscs_are_asked_for_as_they_are(qdisc: Qdisc) -> None:
    asked = parse_message(add_qdisc(ETH0, qdisc).payload)
    assert (asked.interface, asked.kind, asked.handle, asked.parent) == (7, *qdisc[:3])
    assert asked.attributes.get(2) == qdisc.options


def test_delete_class_names_the_class() -> None:
    message = decode(tcmsg, delete_class(ETH0, class_ids.classid(2)))
    assert (message["index"], message["handle"]) == (7, 0x4D50_0002)


def test_parse_message_returns_what_was_requested() -> None:
    options = htb.class_options(RATE)
    parsed = parse_message(add_class(ETH0, class_ids.classid(2), options, RATE).payload)
    assert parsed == (7, 0x4D50_0002, 0x4D50_0000, 0, "htb", {1: b"htb\0", 2: options})
