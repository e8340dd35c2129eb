"""The proposal in a file: values change in the text, comments stay, and what others have edited is kept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from setup_facts import HOST

from mptcp_throttle.config.load import load_config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.ports import Ports
from mptcp_throttle.setup.kept_files import (
    MAIN_FILE,
    NETWORK_FILES,
    SQUID_SERVICE,
    SQUID_UPLOADS,
    NewFile,
    Outcome,
    difference,
    judge,
    read_present,
    set_aside,
    shipped,
    write,
    write_files,
)
from mptcp_throttle.setup.network_files import check_together, has_own_networks, networks_directory, shipped_examples
from mptcp_throttle.setup.proposal import Proposal, Value, propose
from mptcp_throttle.setup.proposal_text import loaded, proposed_text, set_value

REPOSITORY: Final = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (MAIN_FILE, "config/mptcp-throttle.yaml"),
        ("lte.yaml", "config/networks.d/lte.yaml"),
        ("wifi.yaml", "config/networks.d/wifi.yaml"),
        (SQUID_SERVICE, "systemd/squid.service.d/mptcp.conf"),
        (SQUID_UPLOADS, "config/squid/mptcp-throttle.conf"),
    ],
)
def test_shipped_files_are_those_that_the_package_installs(name: str, path: str) -> None:
    assert shipped(name) == (REPOSITORY / path).read_text(encoding="utf-8")


def test_shipped_networks_are_all_that_the_package_installs() -> None:
    assert sorted(NETWORK_FILES) == sorted(path.name for path in (REPOSITORY / "config/networks.d").iterdir())


def proposal(interface: str = "wan0", ports: str = "[443, 3128]") -> Proposal:
    values = Value(("proxy", "interface"), interface, "because"), Value(("proxy", "ports"), ports, "so it is")
    return Proposal(values, (), ())


def test_proposed_file_passes_the_loader_and_has_a_reason_per_value(tmp_path: Path) -> None:
    made = propose(HOST)
    text = proposed_text(made, None)
    (tmp_path / "networks.d").mkdir()
    (tmp_path / "networks.d/wifi.yaml").write_text(shipped("wifi.yaml"))
    (tmp_path / MAIN_FILE).write_text(text)
    config = load_config(tmp_path / MAIN_FILE)
    assert (config.proxy.interfaces, config.proxy.ports) == (("eth0",), Ports.of([8080]))
    assert text.count("# setup:") >= len(made.values)
    assert [line for line in shipped(MAIN_FILE).splitlines() if line not in text.splitlines()] == []


def test_proposed_file_is_the_same_the_second_time_unless_a_value_changes() -> None:
    once = proposed_text(proposal(), None)
    assert proposed_text(proposal(), once) == once
    assert difference("file", once, once) == ""
    assert proposed_text(proposal(interface="lan0"), once) == once.replace("interface: wan0", "interface: lan0")


EDITED: Final = """\
proxy:
  ports: # mine
    - 443
    - 3128   # and this
  interface: eth9  # the uplink
# mine too
log_level: debug
"""


@pytest.mark.parametrize("edited", [EDITED, EDITED.replace("# mine too\n", "# mine too\r\n")], ids=["LF", "mixed"])
def test_edited_file_keeps_all_that_does_not_differ(edited: str) -> None:
    assert proposed_text(proposal(ports="[3128, 443]"), edited) == edited.replace(
        "  interface: eth9", "  # setup: because\n  interface: wan0"
    )


def test_proxies_are_kept() -> None:
    several = "proxies:\n  work: {interface: eth9, ports: [443]}\n  guests: {interface: eth8, ports: [3128]}\n"
    assert proposed_text(proposal(), several) == several


def test_line_ends_of_an_edited_file_stay(tmp_path: Path) -> None:
    file = tmp_path / MAIN_FILE
    file.write_bytes(EDITED.replace("\n", "\r\n").encode())
    text = proposed_text(proposal(ports="[3128, 443]"), read_present(file))
    write(file, text, Outcome.WRITE)
    changed = EDITED.replace("  interface: eth9", "  # setup: because\n  interface: wan0")
    assert file.read_bytes() == changed.replace("\n", "\r\n").encode()


@pytest.mark.parametrize("proposed", [proposal(ports="[3128, 443]"), proposal(), proposal(ports="[1]")])
@pytest.mark.parametrize("present", [EDITED, "log_level: debug\nproxy:\n  interface: eth9\n  ports: [443]\n"])
def test_text_without_a_last_line_end_is_the_same_the_second_time(proposed: Proposal, present: str) -> None:
    once = proposed_text(proposed, present.rstrip("\n").replace("\n", "\r\n"))
    assert "\r" not in once.replace("\r\n", "")
    assert proposed_text(proposed, once) == once


def test_line_ends_are_no_edit(tmp_path: Path) -> None:
    default = shipped(MAIN_FILE)
    present = default.replace("\n", "\r\n")
    text = proposed_text(proposal(), present)
    assert text == proposed_text(proposal(), default).replace("\n", "\r\n")
    assert judge(present, text, default, force=False) is Outcome.WRITE
    assert judge(present, default, None, force=False) is Outcome.UNCHANGED
    assert difference("file", present, default) == ""
    (tmp_path / "lte.yaml").write_bytes(shipped("lte.yaml").replace("\n", "\r\n").encode())
    assert list(shipped_examples(tmp_path)) == [tmp_path / "lte.yaml"]


def test_byte_order_mark_is_no_edit(tmp_path: Path) -> None:
    default = shipped(MAIN_FILE)
    text = proposed_text(proposal(), f"\ufeff{default}")
    assert text == "\ufeff" + proposed_text(proposal(), default)
    assert judge(f"\ufeff{default}", text, default, force=False) is Outcome.WRITE
    assert judge(f"\ufeff{default}", default, None, force=False) is Outcome.UNCHANGED
    assert difference("file", f"\ufeff{default}", default) == ""
    (tmp_path / "lte.yaml").write_text("\ufeff" + shipped("lte.yaml"))
    assert list(shipped_examples(tmp_path)) == [tmp_path / "lte.yaml"]


def test_byte_order_mark_of_an_edited_file_stays() -> None:
    edited = proposed_text(proposal(ports="[3128, 443]"), f"\ufeff{EDITED}")
    assert edited == "\ufeff" + EDITED.replace("  interface: eth9", "  # setup: because\n  interface: wan0")


def test_edited_file_gets_what_it_lacks_only_if_it_is_no_default() -> None:
    values = Value(("metrics", "clients"), "false", "default"), Value(("metrics", "listen"), "null", "taken")
    text = proposed_text(Proposal((*proposal().values, *values), (), ()), EDITED)
    assert loaded(text).metrics.listen is None
    assert "clients" not in text
    assert text.endswith("\nmetrics:\n  # setup: taken\n  listen: null\n")


CHOSEN: Final = """\
proxy:
  interface: eth0
  ports: [8080]
daemon:
  replace_any_qdisc: true
  pacing: false
metrics:
  listen: 127.0.0.1:9999
socket_group: root
"""


def test_choices_of_the_operator_stay() -> None:
    taken = (*HOST.listeners, replace(HOST.listeners[0], port=9721))
    proposed = propose(replace(HOST, listeners=taken, has_socket_group=False))
    assert proposed_text(proposed, CHOSEN) == CHOSEN
    with_default = CHOSEN.replace("9999", "9721")
    assert proposed_text(proposed, with_default) == with_default.replace(
        "  listen: 127.0.0.1:9721", "  # setup: sshd (ssh.service) listens on 9721 already\n  listen: null"
    )


@pytest.mark.parametrize("present", ["proxy: {interface: eth9, ports: [1]}\n", "a: [\n", "", "proxy: 7\n", "- 1\n"])
def test_file_that_cannot_be_changed_line_by_line_is_refused(present: str) -> None:
    with pytest.raises(UserError, match="cannot be changed line by line"):
        proposed_text(proposal(), present)


@pytest.mark.parametrize("directory", ["access", "../access", "/nowhere"])
def test_file_that_names_its_networks_directory_keeps_all(directory: str) -> None:
    present = f"{EDITED}networks_directory: {directory}\ndaemon:\n  linger: 7s\n"
    assert proposed_text(proposal(), present) == present.replace(
        "  interface: eth9", "  # setup: because\n  interface: wan0"
    )
    assert networks_directory(Path("/etc/a.yaml"), yaml.safe_load(present)) == Path("/etc") / directory
    with pytest.raises(ConfigError, match="networks_directory"):
        loaded(f"{EDITED}networks_directory: 7\n")


def test_full_temporary_directory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(UserError, match=r"^setup: temporary files cannot be written: No such file") as caught:
        proposed_text(proposal(), EDITED)
    assert caught.value.status == os.EX_IOERR


def test_lists_in_block_style_are_replaced_as_a_whole() -> None:
    text = "a:\n  b:\n    - 1\n    # one\n    - 2\n  c: 3\n"
    assert set_value(text, ("a", "b"), "[4]", "") == "a:\n  b: [4]\n  c: 3\n"
    assert set_value("a:\nb: 1\n", ("a",), "[4]", "why") == "# setup: why\na: [4]\nb: 1\n"


def test_key_that_a_section_lacks_goes_above_its_first_key_and_comment() -> None:
    text = "a:\n  # of b\n  b: 1\n"
    assert set_value(text, ("a", "c"), "2", "why") == "a:\n  # setup: why\n  c: 2\n  # of b\n  b: 1\n"
    assert set_value(text, ("d",), "2", "why") == f"{text}\n# setup: why\nd: 2\n"


KEYS: Final = st.sampled_from(["a", "b", "c"])
SCALARS: Final = st.one_of(st.integers(0, 99), st.booleans(), st.none(), st.text("xyz #:'\"-", max_size=8))
FILES: Final = st.dictionaries(
    KEYS, st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(KEYS, SCALARS, max_size=3)), min_size=1
)


@given(FILES, st.lists(KEYS, min_size=1, max_size=2), st.integers(0, 99), st.booleans())
def test_value_that_is_set_changes_nothing_else(
    data: dict[str, object], keys: list[str], value: int, flow: bool
) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow)
    changed = set_value(text, tuple(keys), str(value), "a reason")
    section = data.get(keys[0])
    if changed is None:
        assert flow or (len(keys) == 2 and keys[0] in data and not (isinstance(section, dict) and section))
        return
    expected = dict(data)
    if len(keys) == 1:
        expected[keys[0]] = value
    else:
        expected[keys[0]] = {**(section if isinstance(section, dict) else {}), keys[1]: value}
    assert yaml.safe_load(changed) == expected


def several(*names: str) -> Proposal:
    if len(names) == 1:
        return Proposal((Value(("proxy", "interface"), names[0], "one", "interfaces"),), (), ())
    return Proposal((Value(("proxy", "interfaces"), f"[{', '.join(names)}]", "many", "interface"),), (), ())


def test_several_interfaces_replace_one_and_the_reverse() -> None:
    many = proposed_text(several("eth0", "wg0"), None)
    assert loaded(many).proxy.interfaces == ("eth0", "wg0")
    single = proposed_text(several("wg0"), many)
    assert loaded(single).proxy.interfaces == ("wg0",)
    assert single == many.replace("# setup: many\n  interfaces: [eth0, wg0]", "# setup: one\n  interface: wg0")
    listed = EDITED.replace("interface: eth9", "interfaces: [eth9]")
    assert proposed_text(Proposal((*several("eth9").values, proposal().values[1]), (), ()), listed) == listed


def test_difference_names_the_file_and_shows_what_changes() -> None:
    assert difference("f", "a\nb\n", "a\nc\n") == "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert difference("f", None, "a\n").startswith("--- /dev/null\n+++ f\n")


@pytest.mark.parametrize(
    ("present", "force", "outcome"),
    [
        (None, False, Outcome.WRITE),
        ("new", False, Outcome.UNCHANGED),
        ("as installed", False, Outcome.WRITE),
        ("edited", False, Outcome.KEEP),
        ("edited", True, Outcome.BACK_UP),
        ("new", True, Outcome.UNCHANGED),
    ],
)
def test_file_that_was_edited_is_kept_unless_forced(present: str | None, force: bool, outcome: Outcome) -> None:
    assert judge(present, "new", "as installed", force=force) is outcome


def test_backups_never_replace_one_another(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("one")
    file.chmod(0o640)
    first = write(file, "two", Outcome.BACK_UP)
    second = write(file, "three", Outcome.BACK_UP)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("a.yaml.before-setup", "a.yaml.before-setup-2")
    assert [path.read_text() for path in (first, second, file)] == ["one", "two", "three"]
    assert file.stat().st_mode & 0o777 == 0o640
    assert write(file, "four", Outcome.KEEP) is None
    assert write(file, "four", Outcome.UNCHANGED) is None
    assert file.read_text() == "three"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, first.name, second.name])


def test_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text("one")
    link = tmp_path / "link.yaml"
    link.symlink_to("real.yaml")
    assert write(link, "two", Outcome.WRITE) is None
    assert (link.is_symlink(), (tmp_path / "real.yaml").read_text()) == (True, "two")


def test_new_directories_can_be_read_by_the_services(tmp_path: Path) -> None:
    write(tmp_path / "a/b/c.conf", "text", Outcome.WRITE)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a/b")] == [0o755, 0o755]


def test_file_that_cannot_be_read_or_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(UserError, match="latin: cannot be read: it is not UTF-8 text"):
        read_present(tmp_path / "latin")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_present(tmp_path)
    with pytest.raises(UserError, match="latin/a: cannot be written: Not a directory"):
        write(tmp_path / "latin/a", "text", Outcome.WRITE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The configuration as the package installs it."""
    (tmp_path / "networks.d").mkdir()
    for name in NETWORK_FILES:
        (tmp_path / "networks.d" / name).write_text(shipped(name))
    (tmp_path / MAIN_FILE).write_text(shipped(MAIN_FILE))
    return tmp_path / MAIN_FILE


def test_networks_of_the_package_are_not_the_operators_own(installed: Path) -> None:
    directory = installed.parent / "networks.d"
    assert not has_own_networks(directory)
    assert {path.name for path in shipped_examples(directory)} == set(NETWORK_FILES)
    (directory / "wifi.yaml").write_text(shipped("wifi.yaml") + "# mine\n")
    assert has_own_networks(directory)
    assert [path.name for path in shipped_examples(directory)] == ["lte.yaml"]
    assert not has_own_networks(directory / "none")


def test_example_that_is_set_aside_is_no_network_any_more(installed: Path) -> None:
    directory = installed.parent / "networks.d"
    backup = set_aside(directory / "lte.yaml")
    assert (backup.name, backup.read_text()) == ("lte.yaml.before-setup", shipped("lte.yaml"))
    assert [network.name for network in load_config(installed).networks] == ["wifi"]


def test_files_are_checked_together_before_they_are_written(installed: Path) -> None:
    directory = installed.parent / "networks.d"
    new = {"a.yaml": "name: a\nsubnets: [10.1.0.0/24]\npreference: 1\n"}
    with pytest.raises(ConfigError) as caught:
        check_together(installed, directory, new, set())
    (line,) = caught.value.problems
    assert line.startswith(f"{directory}/lte.yaml:")
    assert "is a subnet of network a too" in line
    check_together(installed, directory, new, {directory / "lte.yaml"})
    assert sorted(path.name for path in directory.iterdir()) == sorted(NETWORK_FILES)


def test_files_are_checked_where_they_are(installed: Path) -> None:
    directory = installed.parent / "networks.d"
    (installed.parent / "lists").mkdir()
    (installed.parent / "lists/x.txt").write_text("192.0.2.0/24\n")
    (directory / "mine.yaml").write_text("name: mine\nsubnets_file: ../lists/x.txt\npreference: 3\n")
    assert len(load_config(installed).networks) == 3
    new = {"a.yaml": "name: a\nsubnets: [198.51.100.0/24]\npreference: 1\n"}
    check_together(installed, directory, new, set())
    with pytest.raises(ConfigError) as caught:
        check_together(installed, directory, {"a.yaml": new["a.yaml"].replace("198.51.100", "192.0.2")}, set())
    (line,) = caught.value.problems
    assert line.startswith(f"{directory}/../lists/x.txt:1: 192.0.2.0/24: is a subnet of network a too ({directory}/a.y")


@pytest.mark.parametrize("obstacle", ["unreadable", "unwritable"])
def test_all_files_are_as_before_when_one_cannot_be_written(tmp_path: Path, obstacle: str) -> None:
    changed, edited, new, last = (tmp_path / name for name in ("changed", "edited", "new", "directory/last.conf"))
    target = tmp_path / "target"
    new.symlink_to(target)
    for file in (changed, edited):
        file.write_text("before\n")
    edited.chmod(0o640)
    if obstacle == "unreadable":
        last.parent.mkdir()
        last.write_bytes(b"\xff")
    else:
        last.parent.symlink_to("/proc")
    files = [
        NewFile(changed, "after\n", "before\n"),
        NewFile(edited, "after\n"),
        NewFile(new, "new\n"),
        NewFile(last, "last\n"),
    ]
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=rf"{last.name}: cannot be [^;]*$"):
        write_files(files, force=True, dry_run=False)
    assert (changed.read_text(), edited.read_text(), edited.stat().st_mode & 0o777) == ("before\n", "before\n", 0o640)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert new.is_symlink()
    assert not target.exists()
