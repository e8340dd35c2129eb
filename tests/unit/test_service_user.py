"""What the user of a service may read, by owner, group and mode of files and of the directories above."""

from __future__ import annotations

import grp
import os
import socket
import stat
from pathlib import Path

import pytest

from mptcp_throttle.cli.doctor.file_checks import ServiceUser, UnknownUser, obstacles, of_listener, of_unit

USER = ServiceUser("throttled", 4711, frozenset({4711, 4712}))


def status(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "may"),
    [
        (0, 0, 0o004, True),
        (0, 0, 0o440, False),
        (0, 4712, 0o040, True),
        (0, 4712, 0o404, False),
        (4711, 0, 0o400, True),
        (4711, 4712, 0o044, False),
    ],
)
def test_first_class_that_fits_decides(uid: int, gid: int, mode: int, may: bool) -> None:
    assert USER.may(stat.S_IROTH, status(mode, uid, gid)) == may


def test_all_permissions_are_needed_except_by_root() -> None:
    both = stat.S_IROTH | stat.S_IXOTH
    assert [USER.may(both, status(mode)) for mode in (0o755, 0o754, 0o751)] == [True, False, False]
    assert ServiceUser("root", 0, frozenset({0})).may(both, status(0))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file, a directory, and a file in it, which all may read."""
    tmp_path.chmod(0o755)
    directory = tmp_path / "networks.d"
    directory.mkdir(mode=0o755)
    paths = [tmp_path / "service.yaml", directory, directory / "lte.yaml"]
    for path in (paths[0], paths[2]):
        path.touch(mode=0o644)
    return paths


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ServiceUser:
    """One for whom the directories above `tmp_path`, which pytest makes for its own user alone, are no obstacle."""
    real = ServiceUser.may
    above = {path.stat().st_ino for path in tmp_path.parents}
    monkeypatch.setattr(
        ServiceUser, "may", lambda self, wanted, status: status.st_ino in above or real(self, wanted, status)
    )
    return USER


@pytest.mark.parametrize(("index", "mode"), [(0, 0o600), (1, 0o711), (1, 0o744), (2, 0o640)])
def test_what_others_may_not_read_is_an_obstacle(files: list[Path], user: ServiceUser, index: int, mode: int) -> None:
    assert list(obstacles(user, files)) == []
    files[index].chmod(mode)
    assert list(obstacles(user, files)) == [files[index]]


def test_directory_above_needs_no_more_than_passage(files: list[Path], user: ServiceUser) -> None:
    files[0].parent.chmod(0o711)
    assert list(obstacles(user, files)) == []
    files[0].parent.chmod(0o744)
    assert list(obstacles(user, files)) == [files[0].parent]


@pytest.mark.parametrize(
    ("link", "target"), [("link.yaml", "networks.d/lte.yaml"), ("networks.d/link.yaml", "service.yaml")]
)
def test_directory_of_a_linked_file_is_an_obstacle_too(
    files: list[Path], user: ServiceUser, link: str, target: str
) -> None:
    directory = files[0].parent
    (directory / link).symlink_to(directory / target)
    files[1].chmod(0o700)
    assert list(obstacles(user, [directory / link])) == [files[1]]


def test_access_control_list_may_say_otherwise(
    files: list[Path], user: ServiceUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    files[0].chmod(0o600)
    monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
    assert list(obstacles(user, files)) == []


def test_user_of_a_socket_is_that_of_its_listener(tmp_path: Path) -> None:
    assert of_listener(tmp_path / "socket") is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        user = of_listener(tmp_path / "socket")
    assert user is not None
    assert user.uid == os.geteuid()
    assert sorted(user.gids) == sorted({os.getegid(), *os.getgroups()})


def test_user_of_a_unit_has_its_supplementary_groups() -> None:
    games, mail = of_unit("games", "", []), of_unit("games", "", ["mail"])
    assert games.name == "games"
    assert list(mail.gids - games.gids) == [grp.getgrnam("mail").gr_gid]
    assert of_unit("", "", []).uid == 0
    with pytest.raises(UnknownUser, match="no-such-user"):
        of_unit("no-such-user", "", [])
