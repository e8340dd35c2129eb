"""The demo's choice of a mark back end reaches the services of its scenarios, and no other scenario."""

from __future__ import annotations

import pytest

from mptcp_lab import demo
from mptcp_lab.scenario.files import chosen
from mptcp_throttle.model import MarkMethod


@pytest.mark.parametrize("situation", demo.SITUATIONS)
def test_chosen_marks_are_those_of_the_services(situation: str) -> None:
    (experiment,) = chosen([f"demo/{situation}:quick"])
    throttle = demo._marked(experiment, MarkMethod.RULES).scenario.throttle
    assert (throttle is None) == (experiment.scenario.throttle is None)
    assert throttle is None or throttle.marks is MarkMethod.RULES
