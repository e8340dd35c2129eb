"""The answer to `status` as a whole."""

from __future__ import annotations

import json

from mptcp_throttle.features import FeatureName
from mptcp_throttled.answers.status import status
from mptcp_throttled.answers.subflow_counts import SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.features import Absent
from mptcp_throttled.vocabulary.snapshot import Snapshot


def test_feature_that_is_switched_off_is_in_the_answer() -> None:
    snapshot = Snapshot(features={FeatureName.PACING: Absent("daemon.pacing is false").state})
    view = View(snapshot, Enforcement(), {}, Now(1000.0, 1.7e9))
    answer = json.loads(json.dumps(status(view, SubflowCounts(), ("eth0",), {})))
    assert answer["daemon"]["features"] == {
        "pacing": {"problem": "daemon.pacing is false", "switched_off": "daemon.pacing is false", "counters": {}}
    }
