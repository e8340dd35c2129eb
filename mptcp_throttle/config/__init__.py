"""The configuration: its schema, its loader, and the differences between two configurations."""
