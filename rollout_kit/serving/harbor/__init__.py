"""Tasks in Harbor's folders: what a folder says, and whether it runs here. Nothing is run."""
