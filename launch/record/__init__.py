"""What a run writes and prints: its folder, metrics, report and progress."""
