"""What subflows have carried: each byte counted once, by access network and client, and kept as history."""
