"""Coupled congestion controls, which upstream Linux has not: LIA and OLIA, as BPF programs."""
