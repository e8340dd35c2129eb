"""The one place that logs and counts what the loop has done."""
