"""What the server has of policies and proxies: what is no announcement is left out, and nothing is replaced."""

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_server import PolicyServer

from mptcp_throttle.policy_bundle.published import Announcement, PublishedPolicies
from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttle.valkey.resp import Reply

SAID: Final = Announcement(7, "ab12", 1000.0, "policy 8: is not signed", 1010.5)
PROXIES: Final = b"mptcp-throttle:policy:europe:proxies"


def said_with(**changed: object) -> bytes:
    return json.dumps({**json.loads(SAID.encode()), **changed}).encode()


def test_announcement_is_read_as_it_was_written() -> None:
    own_files = Announcement(None, None, None, None, 5.0)
    for said in (SAID, own_files):
        assert Announcement.decode(said.encode()) == said


def test_problem_is_one_short_line_however_long_it_was() -> None:
    said = Announcement(7, "ab12", 1000.0, "a\n" + "é\0" * 5000, 1010.5)
    read = Announcement.decode(said.encode())
    assert read.problem is not None
    assert read.problem.isprintable()
    assert len(read.problem) == 200


NO_NUMBERS: Final[tuple[object, ...]] = (0, -1, 10**9 + 1, 1e400, 7.5, True, "7", [], {})
NO_TIMES: Final[tuple[object, ...]] = (-1, 1e300, float("nan"), True, "1", [], "")
NO_TEXTS: Final[tuple[object, ...]] = ("a\nb", "\x1b[2J", 5, [], {})
LIES: Final = [
    *(said_with(number=number) for number in NO_NUMBERS),
    *(said_with(**{key: at}) for key in ("since", "said_at") for at in NO_TIMES),
    *(said_with(**{key: None}) for key in ("said_at", "digest", "number")),
    *(said_with(**{key: text}) for key in ("digest", "problem") for text in NO_TEXTS),
    *(b"", b"[]", b"7", b"null", b"\xff", b"[" * 1000, b"{" * 5000, b'"' + b"a" * 5000 + b'"', b"1" * 1000),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: str(lie[:30]))
def test_announcement_that_is_none_hides_no_other(lie: bytes) -> None:
    server = PolicyServer({PROXIES: {b"proxy-1": SAID.encode(), b"proxy-2": lie, b"Proxy 3\n": SAID.encode()}})
    assert PublishedPolicies(server.ask, "europe").announcements() == {"proxy-1": SAID}


@given(st.binary(max_size=300))
def test_any_bytes_are_an_announcement_or_refused(content: bytes) -> None:
    server = PolicyServer({PROXIES: {b"proxy-1": content}})
    assert len(PublishedPolicies(server.ask, "europe").announcements()) in {0, 1}


def test_too_many_proxies_are_refused_in_one_line() -> None:
    server = PolicyServer({PROXIES: {b"proxy-%d" % number: b"x" * 1500 for number in range(1000)}})
    with pytest.raises(ValkeyError) as error:
        PublishedPolicies(server.ask, "europe").announcements()
    assert str(error.value) == "the server has more than 1000 proxies of fleet europe"


def test_policy_on_the_server_is_never_replaced() -> None:
    published = PublishedPolicies(PolicyServer().ask, "europe")
    assert published.add(7, b"first")
    assert not published.add(7, b"second")
    assert published.numbers() == [7]


@pytest.mark.parametrize("reply", [None, 7, b"1", ()])
def test_answer_of_another_kind_is_refused(reply: Reply) -> None:
    published = PublishedPolicies(lambda *_: [reply], "europe")
    assert published.numbers() == []
    assert published.announcements() == {}
    with pytest.raises(ValkeyError, match="the server's answer is no number"):
        published.add(7, b"x")
    with pytest.raises(ValueError, match=r"is not on the server|is no signed policy"):
        published.read(7, ())
