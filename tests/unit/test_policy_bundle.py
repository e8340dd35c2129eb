"""A policy as bytes: the one encoding, its bounds, and the signature without which no byte of it is parsed."""

import base64
import errno
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttle.errors import UserError
from mptcp_throttle.policy_bundle.bundle import MAX_ENCODED, MAX_FILES, MAX_VERSION, Bundle, changed_files
from mptcp_throttle.policy_bundle.signature import MAX_SIGNED, PrivateKey, PublicKey, checked

LTE: Final = "name: lte\npreference: 2\nsubnets: [10.1.0.0/24]\ncap: 1mbit\n"
FILES: Final = {"networks.d/lte.yaml": LTE, "networks.d/lte.txt": "10.3.0.0/24\r\n", "clients.d/a.yml": "name: ä\n"}
BUNDLE: Final = Bundle("europe", 7, 1_796_000_000, "alice", FILES)
KEY: Final = PrivateKey.new()
SIGNED: Final = KEY.sign(BUNDLE)


def test_bundle_has_one_encoding() -> None:
    reordered = replace(BUNDLE, files=dict(reversed(FILES.items())))
    assert reordered.encode() == BUNDLE.encode()
    assert Bundle.decode(BUNDLE.encode()) == BUNDLE
    assert reordered.described == BUNDLE.described


def test_digest_is_that_of_the_files_alone() -> None:
    later = replace(BUNDLE, version=9, published_at=1_796_000_100, author="bob")
    assert later.described.digest == BUNDLE.described.digest
    assert (
        replace(BUNDLE, files={**FILES, "networks.d/lte.yaml": LTE + "\n"}).described.digest != later.described.digest
    )


@pytest.mark.parametrize(
    "name",
    [
        *("../etc/passwd", "networks.d/../x.yaml", "networks.d/a/b.yaml", "/etc/x", "networks.d//x", "networks.d/"),
        *("networks.d/.hidden", "networks.d/-x", "mptcp-throttle.yaml", "other.d/x.yaml", "networks.d/a\0b"),
        *("networks.d/a\nb", "networks.d/é.yaml", f"networks.d/{'a' * 101}", "clients.d\\x", "", "networksxd/a.yaml"),
    ],
)
def test_bundle_with_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name for a file of a policy"):
        replace(BUNDLE, files={**FILES, name: "x"})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"version": 0}, "version: 0: allowed: a whole number from 1"),
        ({"version": MAX_VERSION + 1}, "version: 1000000001: allowed"),
        ({"version": True}, "version: true: allowed"),
        ({"version": 7.0}, "version: 7.0: allowed"),
        ({"version": "7"}, "version: '7': allowed"),
        ({"published_at": -1}, "published_at: -1: allowed"),
        ({"fleet": "Europe"}, "fleet: 'Europe': is no name"),
        ({"fleet": 1}, "fleet: 1: is no name"),
        ({"author": "a\nb"}, "author: 'a\\\\nb': allowed: text"),
        ({"author": "a" * 101}, "author: .*allowed: text"),
        ({"author": None}, "author: null: allowed: text"),
        ({"files": {}}, "files: allowed: 1 to 12000 files"),
        ({"files": ["a"]}, "files: allowed"),
        ({"files": {"clients.d/a.yaml": "x"}}, "files: has no access network"),
        ({"files": {"networks.d/a.yaml": 1}}, "files: networks.d/a.yaml: 1: is no text"),
        ({"files": {"networks.d/a.yaml": "\ud800"}}, "half a character"),
        ({"files": {f"networks.d/{number}": "" for number in range(MAX_FILES + 1)}}, "files: allowed: 1 to 12000"),
        ({"files": {"networks.d/a.yaml": "a" * MAX_ENCODED}}, "bytes; allowed: up to 8388608"),
    ],
)
def test_bundle_beyond_its_bounds_is_refused(changed: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(BUNDLE, **changed)


def encoded_with(**changed: object) -> bytes:
    document = {**json.loads(BUNDLE.encode()), **changed}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "has another format"),
        (b"NaN", "has another format"),
        (b"9" * 5000, "is no JSON"),
        (encoded_with(format=2), "has another format; allowed: 1"),
        (encoded_with(more=1), "has other keys"),
        (encoded_with(version=-1), "version: -1"),
        (encoded_with(files={"../x": ""}), "is no name for a file"),
        (b" " + BUNDLE.encode(), "not in canonical form"),
        (BUNDLE.encode().replace(b'"author":"alice"', b'"author":"bob","author":"alice"'), "not in canonical form"),
        (b" " * (MAX_ENCODED + 1), "bytes; allowed"),
    ],
)
def test_bytes_that_are_no_bundle_are_refused_with_a_reason(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Bundle.decode(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_bundle_or_refused(content: bytes) -> None:
    for damaged in (content, BUNDLE.encode()[: len(content)] + content):
        with pytest.raises(ValueError, match=r"."):
            Bundle.decode(damaged)


def test_signed_bundle_is_read_with_one_of_several_keys() -> None:
    other = PrivateKey.new().public
    assert checked(SIGNED, [KEY.public], "europe") == BUNDLE
    assert checked(SIGNED, [other, KEY.public], "europe") == BUNDLE
    with pytest.raises(ValueError, match=r"is not signed with a key of fleet\.policy\.keys"):
        checked(SIGNED, [other], "europe")
    with pytest.raises(ValueError, match=r"is not signed"):
        checked(SIGNED, [], "europe")


def test_bundle_of_another_fleet_is_refused_though_its_key_is_the_same() -> None:
    with pytest.raises(ValueError, match="is for fleet europe; allowed: asia"):
        checked(SIGNED, [KEY.public], "asia")


def test_no_byte_of_a_signed_bundle_can_be_changed_unseen() -> None:
    for at in range(len(SIGNED)):
        forged = SIGNED[:at] + bytes([SIGNED[at] ^ 1]) + SIGNED[at + 1 :]
        with pytest.raises(ValueError, match=r"is no signed policy|is not signed"):
            checked(forged, [KEY.public], "europe")


def test_truncated_or_longer_signed_bundle_is_refused() -> None:
    for length in range(len(SIGNED)):
        with pytest.raises(ValueError, match=r"is no signed policy|is not signed"):
            checked(SIGNED[:length], [KEY.public], "europe")
    for longer in (SIGNED + b" ", SIGNED + SIGNED):
        with pytest.raises(ValueError, match="is not signed"):
            checked(longer, [KEY.public], "europe")
    with pytest.raises(ValueError, match="bytes; allowed"):
        checked(bytes(MAX_SIGNED + 1), [KEY.public], "europe")


def test_forged_bundle_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcp_throttle.policy_bundle.bundle.json.loads", pytest.fail)
    with pytest.raises(ValueError, match="is not signed"):
        checked(PrivateKey.new().sign(BUNDLE), [KEY.public], "europe")


def test_signature_for_another_purpose_is_none_for_a_policy(tmp_path: Path) -> None:
    KEY.write(tmp_path / "key")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    raw: Any = load_pem_private_key((tmp_path / "key").read_bytes(), None)
    header = SIGNED[: SIGNED.index(b"\n") + 1]
    forged = header + base64.b64encode(raw.sign(BUNDLE.encode())) + b"\n" + BUNDLE.encode()
    with pytest.raises(ValueError, match="is not signed"):
        checked(forged, [KEY.public], "europe")


def test_private_key_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "policy.key"
    KEY.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.read(path).public == KEY.public
    with pytest.raises(UserError, match="cannot be written: File exists"):
        KEY.write(path)
    path.chmod(0o640)
    with pytest.raises(UserError, match="others than its owner may use it; allowed: `chmod 600"):
        PrivateKey.read(path)


@pytest.mark.parametrize("content", ["", "no key\n", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_file_that_is_no_private_key_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "policy.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UserError, match="is no private key without a password"):
        PrivateKey.read(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        PrivateKey.read(tmp_path / "none")


def make_key(path: Path, algorithm: str) -> None:
    subprocess.run(["openssl", "genpkey", "-algorithm", algorithm, "-out", str(path)], check=True)
    path.chmod(0o600)


def test_private_key_of_openssl_is_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.key"
    make_key(path, "ed25519")
    assert checked(PrivateKey.read(path).sign(BUNDLE), [PrivateKey.read(path).public], "europe") == BUNDLE
    make_key(path, "x25519")
    with pytest.raises(UserError, match="is a private key of another kind; allowed: Ed25519"):
        PrivateKey.read(path)


def test_private_key_on_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"policy\.key: cannot be written: No space left on device"):
            KEY.write(tmp_path / "policy.key")
    KEY.write(tmp_path / "policy.key")


def test_public_key_is_one_line_of_text() -> None:
    assert PublicKey.parse(str(KEY.public)) == KEY.public
    for text in ("", "AAAA", str(KEY.public)[:-1], f"{KEY.public}A", "é" * 44, "ssh-ed25519 AAAA"):
        with pytest.raises(ValueError, match="is no public key"):
            PublicKey.parse(text)


def test_changed_files_are_named_with_what_becomes_of_them() -> None:
    after = {"networks.d/lte.yaml": "x", "networks.d/lte.txt": FILES["networks.d/lte.txt"], "networks.d/b.yaml": ""}
    assert list(changed_files(FILES, after)) == [
        "clients.d/a.yml: removed",
        "networks.d/b.yaml: new",
        "networks.d/lte.yaml: changed",
    ]
