"""The drop-in that makes a service of systemd listen with MPTCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_throttle.errors import UserError
from mptcp_throttle.setup.kept_files import SQUID_SERVICE, SQUID_UPLOADS, shipped
from mptcp_throttle.setup.server_drop_in import (
    drop_in_path,
    make_drop_in,
    read_unit_files,
    require_socket_protocol,
    start_commands,
    unit_name,
    with_files,
)

ROOT = Path("/")
SQUID = "[Service]\nExecStart=/usr/sbin/squid --foreground -sYC\n"
NGINX = "[Service]\nType=forking\nExecStartPre=/usr/sbin/nginx -t\nExecStart=/usr/sbin/nginx -g 'daemon on;'\n"


@pytest.mark.parametrize(
    ("texts", "commands"),
    [
        ([NGINX], ("/usr/sbin/nginx -g 'daemon on;'",)),
        ([NGINX, "[Service]\nExecStart=\nExecStart=/other\n"], ("/other",)),
        ([NGINX, "[Service]\nExecStart=\n"], ()),
        (["[Service]\nExecStart=/a\nExecStart = /b\n"], ("/a", "/b")),
        (["[Service]\nExecStart=/a \\\n# a comment\n  --b \\\n  --c\nUser=x\n"], ("/a  --b  --c",)),
        (["[Install]\nExecStart=/a\n[Service]\n#ExecStart=/b\n;ExecStart=/c\n"], ()),
        ([], ()),
    ],
)
def test_start_commands_are_those_that_systemd_would_use(texts: list[str], commands: tuple[str, ...]) -> None:
    assert start_commands(texts) == commands


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/usr/sbin/nginx -g 'daemon on;'", "/usr/bin/mptcpize run /usr/sbin/nginx -g 'daemon on;'"),
        ("-/usr/sbin/haproxy -Ws -f $CONFIG", "-/usr/bin/mptcpize run /usr/sbin/haproxy -Ws -f $CONFIG"),
        ("!!/bin/x", "!!/usr/bin/mptcpize run /bin/x"),
    ],
)
def test_service_is_started_by_mptcpize_with_its_own_arguments(command: str, expected: str) -> None:
    made = make_drop_in(ROOT, "a.service", [f"[Service]\nExecStart={command}\n"], with_uploads=True)
    ((path, text, _),) = made.files
    assert path == Path("/etc/systemd/system/a.service.d/zz-mptcp-throttle.conf")
    assert start_commands([f"[Service]\nExecStart={command}\n", text]) == (expected,)
    assert made.apply == ("systemctl daemon-reload", "systemctl restart a.service", "ss -Mltn")
    assert made.undo == (f"rm {path}", "systemctl daemon-reload", "systemctl restart a.service")


def test_squid_gets_the_files_of_the_package() -> None:
    made = make_drop_in(ROOT, "squid.service", [SQUID], with_uploads=True)
    assert [(str(file.path), file.text) for file in made.files] == [
        ("/etc/systemd/system/squid.service.d/zz-mptcp-throttle.conf", shipped(SQUID_SERVICE)),
        ("/etc/squid/conf.d/mptcp-throttle.conf", shipped(SQUID_UPLOADS)),
    ]
    assert made.undo[0].startswith("rm /etc/systemd/system/squid.service.d/zz-mptcp-throttle.conf /etc/squid/conf.d/")
    assert made.files[0].path.name > "override.conf"  # that of `systemctl edit`
    made = make_drop_in(ROOT, "squid.service", [SQUID], with_uploads=False)  # which has a large buffer
    assert [file.path.parent.name for file in made.files] == ["squid.service.d"]
    assert made.undo[0] == "rm /etc/systemd/system/squid.service.d/zz-mptcp-throttle.conf"


def test_socket_gets_the_protocol() -> None:
    made = make_drop_in(ROOT, "proxy.socket", ["[Socket]\nListenStream=8080\n"], with_uploads=True)
    ((path, text, _),) = made.files
    assert str(path) == "/etc/systemd/system/proxy.socket.d/zz-mptcp-throttle.conf"
    assert text.endswith("[Socket]\nSocketProtocol=mptcp\n")


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ([], "a.service: systemd has no such unit; allowed: "),
        (["[Service]\nExecStart=/usr/bin/mptcpize run /a\n"], "a.service is already started by mptcpize; allowed: "),
        (["[Service]\nExecStart=/a\nExecStart=/b\n"], "a.service has 2 ExecStart=; allowed: "),
        (["[Service]\nType=oneshot\n"], "a.service has 0 ExecStart=; allowed: "),
        (["[Service]\nExecStart=@/a b\n"], "a.service: ExecStart=@/a b: mptcpize cannot start it; allowed: "),
        (["[Service]\nExecStart=a\n"], "a.service: ExecStart=a: mptcpize cannot start it; allowed: "),
    ],
)
def test_unit_that_mptcpize_cannot_start_is_refused(texts: list[str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        make_drop_in(ROOT, "a.service", texts, with_uploads=True)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def write_files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_unit_files_are_read_in_the_order_of_systemd(tmp_path: Path) -> None:
    files = {
        "usr/lib/systemd/system/a.service": "of the package",
        "lib/systemd/system/a.service": "the same",
        "usr/lib/systemd/system/a.service.d/20-x.conf": "20 of the package",
        "etc/systemd/system/a.service.d/20-x.conf": "20 of the operator",
        "etc/systemd/system/a.service.d/10-y.conf": "\ufeff10",
        "etc/systemd/system/a.service.d/.#10-y.conf": "hidden",
        "etc/systemd/system/a.service.d/zz-mptcp-throttle.conf": "ours",
        "etc/systemd/system/a.service.d/notes.txt": "none",
    }
    write_files(tmp_path, files)
    own = drop_in_path(tmp_path, "a.service")
    assert read_unit_files(tmp_path, "a.service", without=own) == ["of the package", "10", "20 of the operator"]
    assert read_unit_files(tmp_path, "a.service")[-1] == "ours"
    assert read_unit_files(tmp_path, "b.service") == []


def test_instance_has_the_files_of_its_template(tmp_path: Path) -> None:
    files = {
        "usr/lib/systemd/system/a@.service": "template",
        "usr/lib/systemd/system/a@.service.d/10-x.conf": "10 of all instances",
        "usr/lib/systemd/system/a@.service.d/20-x.conf": "20 of all instances",
        "etc/systemd/system/a@b.service.d/20-x.conf": "20 of this one",
    }
    write_files(tmp_path, files)
    assert read_unit_files(tmp_path, "a@b.service") == ["template", "10 of all instances", "20 of this one"]
    assert with_files(tmp_path, ["a@b.service", "a.service", "a@c.service"]) == ["a@b.service", "a@c.service"]
    (tmp_path / "etc/systemd/system/a@b.service").write_text("instance")
    assert read_unit_files(tmp_path, "a@b.service")[0] == "instance"


def test_name_with_a_backslash_is_quoted_in_commands() -> None:
    made = make_drop_in(ROOT, unit_name(r"a\x2db"), [NGINX], with_uploads=True)
    assert r"systemctl restart 'a\x2db.service'" in made.apply
    assert made.undo[0] == r"rm '/etc/systemd/system/a\x2db.service.d/zz-mptcp-throttle.conf'"


@pytest.mark.parametrize(
    ("text", "name"),
    [("squid", "squid.service"), ("squid.service", "squid.service"), ("a@1", "a@1.service"), ("b.socket", "b.socket")],
)
def test_unit_name_may_be_short(text: str, name: str) -> None:
    assert unit_name(text) == name


@pytest.mark.parametrize("text", ["", ".", "../a", "a/b", "a b", "a\n", "ü", "x" * 300])
def test_unit_name_cannot_be_a_path(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a unit; allowed: "):
        unit_name(text)


def test_socket_is_refused_where_systemd_ignores_the_protocol() -> None:
    with pytest.raises(UserError, match="systemd 252 ignores SocketProtocol=mptcp; allowed: systemd 257 or later"):
        require_socket_protocol("proxy.socket", 252)
    for version in (257, None):
        require_socket_protocol("proxy.socket", version)


def test_drop_in_of_nginx_says_what_nginx_itself_needs() -> None:
    assert "env LD_PRELOAD;" in make_drop_in(ROOT, "nginx.service", [NGINX], with_uploads=True).notes[0]
    assert make_drop_in(ROOT, "squid.service", [SQUID], with_uploads=True).notes == ()


def test_squid_keeps_the_command_line_of_the_operator() -> None:
    own = "[Service]\nExecStart=\nExecStart=/usr/sbin/squid --foreground -sYC -f /etc/squid/company.conf\n"
    made = make_drop_in(ROOT, "squid.service", [SQUID, own], with_uploads=False)
    expected = "/usr/bin/mptcpize run /usr/sbin/squid -N -sYC -f /etc/squid/company.conf"
    assert start_commands([SQUID, own, made.files[0].text]) == (expected,)
    with pytest.raises(UserError, match="mptcpize needs Squid in one process; allowed: --foreground or -N"):
        make_drop_in(ROOT, "squid.service", ["[Service]\nExecStart=/usr/sbin/squid -s\n"], with_uploads=False)
