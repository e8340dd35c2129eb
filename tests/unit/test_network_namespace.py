"""`proxy.namespace`: what it may name."""

from pathlib import Path

import pytest

from mptcp_throttle.network_namespace import Container, Engine, is_entered, parse_namespace


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("docker:squid", Container(Engine.DOCKER, "squid")),
        ("podman:a_b.c-1", Container(Engine.PODMAN, "a_b.c-1")),
        ("lxc:9", Container(Engine.LXC, "9")),
        ("/run/netns/squid", Path("/run/netns/squid")),
    ],
)
def test_namespace_is_of_a_container_or_has_a_path(text: str, parsed: Container | Path) -> None:
    assert parse_namespace(text) == parsed
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "squid",
        "docker:",
        "docker:--format=x",
        "docker:a b",
        "rkt:squid",
        "Docker:squid",
        "run/netns/squid",
        "/proc/1/ns/net",
        "//proc/1/ns/net",
        "/run/netns/../../proc/1/ns/net",
        "/var/run/netns/mptcp-throttle",
        "/run/netns/a\nb",
        "/run/netns/mptcp-throttle",
        "",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^allowed: docker:NAME, podman:NAME, lxc:NAME, "):
        parse_namespace(text)


def test_own_namespace_is_entered_and_a_missing_one_not(tmp_path: Path) -> None:
    assert is_entered(Path("/proc/self/ns/net"))
    assert not is_entered(Path("/proc/self/ns/mnt"))
    assert not is_entered(tmp_path / "missing")
