"""From stored sequences to batches of packed rows."""
