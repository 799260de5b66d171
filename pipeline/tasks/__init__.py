"""Tasks: how documents become sequences, and how outputs are scored."""
