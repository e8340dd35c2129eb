"""What flows, compared with what is applied."""
