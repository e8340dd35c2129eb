"""The demo: downloads through a real MPTCP proxy in the situations that matter, measured, judged and drawn.

`situations -> stage -> recording -> table | timeline | json`: what is to happen, making it happen, what happened, and
three ways to look at it.
"""
