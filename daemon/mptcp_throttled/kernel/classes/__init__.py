"""The classifiers, which lead subflows to their HTB classes."""
