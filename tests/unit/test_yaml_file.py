from pathlib import Path

import pytest

from mptcp_throttle.config.yaml_file import read_yaml
from mptcp_throttle.errors import ConfigError


def read(directory: Path, text: str) -> dict[str, object]:
    path = directory / "a.yaml"
    path.write_text(text)
    return read_yaml(path).data


def test_values_are_null_bool_int_or_text(tmp_path: Path) -> None:
    text = "a: ~\nb: yes\nc: -16\nd: 2001-01-01\ne: 1.5\nf: [x, 1]\ng: {h: =}\n<<: {i: 1}\n"
    assert read(tmp_path, text) == {
        "a": None,
        "b": True,
        "c": -16,
        "d": "2001-01-01",
        "e": "1.5",
        "f": ["x", 1],
        "g": {"h": "="},
        "<<": {"i": 1},
    }


def test_numbers_that_are_not_decimal_are_text(tmp_path: Path) -> None:
    texts = ["010", "0x50", "0b11", "1_000", "1:20"]
    assert read(tmp_path, f"a: [{', '.join(texts)}, 0, 8080]\n") == {"a": [*texts, 0, 8080]}


def test_keys_are_text(tmp_path: Path) -> None:
    assert read(tmp_path, "1: a\nyes: b\n~: c\n") == {"1": "a", "yes": "b", "~": "c"}


def test_scalars_are_kept_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: {b: 0x7f}\nc:\n  - yes\n")
    file = read_yaml(path)
    assert file.scalars == {("a", "b"): "0x7f", ("c", 0): "yes"}
    assert file.where(("c", 0)) == f"{path}:3"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [*x]\n", ":1: is not valid YAML: aliases (*name) are not allowed"),
        ("a: &x 1\nb: *x\n", ":2: is not valid YAML: aliases (*name) are not allowed"),
        ("a: " + "[" * 600, ": is nested too deeply; allowed: "),
        ("a: " + "[" * 600 + "]" * 600, ": is nested too deeply; allowed: "),
        ("a: !!timestamp 2001-13-45\n", ":1: is not valid YAML: '2001-13-45' is not a value of its type"),
        ("a: 1\nb: !!int x\n", ":2: is not valid YAML: 'x' is not a value of its type"),
        ("a: !!bool x\n", ":1: is not valid YAML: 'x' is not a value of its type"),
        ("a: " + "9" * 5000, ":1: is not valid YAML: '9999"),
        ("[a]: 1\n", ":1: is not valid YAML: expected a scalar node, but found sequence"),
        ("a: 1\n---\nb: 2\n", ":2: is not valid YAML: but found another document"),
    ],
)
def test_yaml_features_that_are_not_allowed_are_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    (line,) = caught.value.problems
    assert line.startswith(f"{tmp_path}/a.yaml{problem}")
