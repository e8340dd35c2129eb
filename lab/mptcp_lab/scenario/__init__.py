"""Scenarios: experiments as YAML files, and what performs, measures and judges them.

`files -> schema -> plan -> world | flows -> stage -> recording -> figures -> judge -> results`, and then
`result_tables`, `plots` and `report`.
"""
