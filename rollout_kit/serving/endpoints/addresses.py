"""URLs and headers of an endpoint as configured: mended, or refused at the start."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

ROUTES = ("/chat/completions", "/completions", "/responses")
"""Ends of a URL that the model server adds itself."""


def check_base_url(url: str) -> str:
    """The URL without blanks around it; ValueError if no request could be sent to it."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if not is_http:
        raise ValueError("must start with http:// or https:// and name a host")
    if parts.fragment or any(character.isspace() for character in url):
        raise ValueError("must not contain blanks or '#'")
    for route in ROUTES:
        if parts.path.rstrip("/").endswith(route):
            raise ValueError(f"must not end in {route}, which is added to each request")
    return url


def check_header(value: str) -> str:
    """The value without blanks around it, such as the line break of a block in YAML; ValueError if
    it cannot be sent."""
    value = value.strip()
    if any(not character.isprintable() for character in value):
        raise ValueError("must be one line of printable characters")
    if not all(ord(character) < 256 for character in value):
        raise ValueError("must not contain characters beyond Latin-1")
    return value


BaseUrl = Annotated[str, AfterValidator(check_base_url)]
HeaderValue = Annotated[str, AfterValidator(check_header)]
