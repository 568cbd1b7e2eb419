"""What ends, holds or redirects a run while it goes on: its limits, and the people who steer it."""
