"""What changes the configured rates: one module per policy rule."""
