"""What a run writes and shows: its folder, metrics, report and progress."""
