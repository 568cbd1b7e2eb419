"""Simulated users: what a row says of one, what it decides, and servers with two sides."""
