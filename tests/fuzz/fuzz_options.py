#!/usr/bin/env .venv/bin/python
"""Coverage-guided fuzzing of the option decoder; from the root of the checkout:

    .venv/bin/pip install --require-hashes -r requirements-fuzz.lock
    mkdir -p /tmp/options
    .venv/bin/python tests/fuzz/fuzz_options.py -max_total_time=600 -max_len=64 /tmp/options tests/fuzz/corpus/options

Inputs that reach new code are then in /tmp/options. To add a minimal set of them to the corpus:

    tests/fuzz/fuzz_options.py -set_cover_merge=1 -use_counters=0 tests/fuzz/corpus/options /tmp/options
"""

import sys

import atheris

with atheris.instrument_imports(include=["mptcp_sniffer"]):
    from options_target import check

atheris.Setup(sys.argv, check)
atheris.Fuzz()
