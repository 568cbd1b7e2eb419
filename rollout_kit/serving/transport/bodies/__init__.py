"""Replies and requests as the JSON that crosses between servers, and why some cannot cross."""
