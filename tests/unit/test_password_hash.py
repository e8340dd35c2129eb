"""The hash of the password for the log-in."""

import pytest

from mptcp_throttle.config.password_hash import PasswordHash


def test_hash_is_another_each_time_and_matches_its_password_alone() -> None:
    made = PasswordHash.of("secret")
    assert made.matches("secret")
    assert not made.matches("Secret")
    assert not made.matches("")
    assert not made.matches(str(made))
    assert PasswordHash.parse(str(made)) == made
    assert PasswordHash.of("secret") != made


@pytest.mark.parametrize(
    "text", ["", "secret", "scrypt:00:00", f"scrypt:{'0' * 32}:{'0' * 63}", f"md5:{'0' * 32}:{'0' * 64}"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="mptcp-throttle-web --new-password"):
        PasswordHash.parse(text)
