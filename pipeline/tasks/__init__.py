"""What documents become: sequences of each task, and its scores."""
