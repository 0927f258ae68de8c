"""Places: pure. Snapshot in, Plan out; every gang that waits gets a reason with numbers."""
