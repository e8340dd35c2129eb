#!/usr/bin/env .venv/bin/python
"""Coverage-guided fuzzing of the tracker; from the root of the checkout:

    .venv/bin/pip install --require-hashes -r requirements-fuzz.lock
    mkdir -p /tmp/tracker
    .venv/bin/python tests/fuzz/fuzz_tracker.py -max_total_time=600 -max_len=400 /tmp/tracker tests/fuzz/corpus/tracker

Inputs that reach new code are then in /tmp/tracker. To add a minimal set of them to the corpus:

    tests/fuzz/fuzz_tracker.py -set_cover_merge=1 -use_counters=0 tests/fuzz/corpus/tracker /tmp/tracker
"""

import sys
from pathlib import Path

import atheris

sys.path.append(str(Path(__file__).parents[1] / "unit"))
with atheris.instrument_imports(include=["mptcp_sniffer"]):
    from tracker_target import check

atheris.Setup(sys.argv, check)
atheris.Fuzz()
