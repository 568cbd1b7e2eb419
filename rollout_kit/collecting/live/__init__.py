"""What a running collection shows and takes while it runs: one snapshot of its figures, computed at
most once a second by the run's own loop, from which progress lines, pages and trackers read."""
