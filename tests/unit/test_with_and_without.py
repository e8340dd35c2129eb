"""The picture of the README shows what the samples say."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mptcp_lab.demo import SITUATIONS
from mptcp_lab.scenario.files import Experiment
from mptcp_lab.scenario.results import Result, Run, directory_of, write_result
from mptcp_lab.with_and_without import PANELS, main, picture, situations
from mptcp_throttle.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"
MEGABYTES_PER_SECOND = {
    "mptcp-uncapped": {"ethernet": 1.25, "wifi": 5.0},
    "capped-1mbit": {"ethernet": 0.125, "wifi": 5.0},
}
SECONDS = {"mptcp-uncapped": 8, "capped-1mbit": 10}
FULL_HEIGHT = 220
"""Of 60 Mb/s in the picture."""


def measured(directory: Path, experiment: Experiment) -> tuple[Experiment, Result]:
    """Each link carries a steady rate. One end counts what it receives, the other one a hundredth of that."""
    situation = experiment.family.partition("/")[2]
    place = directory_of(directory, "native", experiment.name)
    place.mkdir(parents=True)
    rows = ["at_s,host,interface,link,received_bytes,sent_bytes"]
    for at in range(SECONDS[situation] + 1):
        for link, megabytes in MEGABYTES_PER_SECOND[situation].items():
            received = round(at * megabytes * 1e6)
            one_end, other_end, *_ = experiment.scenario.links[link].ends
            rows.append(f"{at}.000,{one_end.host},{one_end.interface},{link},{7000 + received},0")
            rows.append(f"{at}.000,{other_end.host},{other_end.interface},{link},{received // 100},0")
    (place / "interfaces-1.csv").write_text("\n".join(rows) + "\n")
    run = Run({}, float(SECONDS[situation]), 0.5, ())
    result = Result(
        experiment.name,
        f"{experiment.family}.yaml",
        "0a1b2c3",
        "native",
        "6.18.1-cloud",
        "bbr",
        2,
        1.0,
        1,
        [run],
        directory=place,
    )
    write_result(result)
    return experiment, result


def test_panels_are_situations_of_the_demo() -> None:
    assert set(PANELS) <= set(SITUATIONS)


def test_picture_shows_rates_volumes_and_the_commit(tmp_path: Path) -> None:
    root = ElementTree.fromstring(picture([measured(tmp_path, each) for each in situations()]))  # noqa: S314
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if text is not None and "MB" in text] == [
        "Wi-Fi, 56 Mb/s: 40.0 MB",
        "expensive network, 10 Mb/s: 10.0 MB",
        "Wi-Fi, 56 Mb/s: 50.0 MB",
        "expensive network, 10 Mb/s: 1.2 MB",
    ]
    assert "One download, measured by ./run-demo --full at 0a1b2c3 on Linux 6.18.1" in texts
    lines = [[point.split(",") for point in line.attrib["points"].split()] for line in root.iter(f"{SVG}polyline")]
    bottom = float(lines[0][0][1])
    heights = [bottom - float(line[-1][1]) for line in lines]
    assert heights == pytest.approx([FULL_HEIGHT * mbps / 60 for mbps in (40, 10, 40, 1)], abs=0.1)
    # The download without a cap ends after 8 of 10 s.
    widths = [float(line[-1][0]) - float(line[0][0]) for line in lines]
    assert widths == pytest.approx([widths[2] * 0.8, widths[2] * 0.8, widths[2], widths[2]], abs=1)


def test_picture_needs_samples(tmp_path: Path) -> None:
    pairs = [measured(tmp_path, each) for each in situations()]
    (pairs[1][1].directory / "interfaces-1.csv").unlink()
    with pytest.raises(UserError, match="has no samples of wifi and ethernet"):
        picture(pairs)


def test_picture_is_made_of_what_the_full_demo_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [measured(tmp_path, each) for each in situations()]
    monkeypatch.setattr(sys, "argv", ["with-and-without", str(tmp_path), str(tmp_path / "picture.svg")])
    assert main() == 0
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == picture(pairs)
