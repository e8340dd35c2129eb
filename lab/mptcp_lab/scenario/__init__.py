"""Scenarios: experiments as YAML files, and what performs, measures and judges them.

`files -> schema -> plan -> world | flows -> recording -> figures -> verdict -> results -> tables | plots | report`
"""
