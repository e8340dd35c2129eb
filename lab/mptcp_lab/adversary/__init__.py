"""Attacks by clients and by hosts off the path, as they are sent: `catalogue` lists them, `trial` measures them."""
