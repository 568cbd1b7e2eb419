"""The version of this package, which many modules write into what they make."""

__version__ = "0.1.0"
