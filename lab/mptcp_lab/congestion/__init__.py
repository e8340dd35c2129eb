"""Coupled congestion controls as BPF programs: LIA and OLIA, which upstream Linux lacks."""
