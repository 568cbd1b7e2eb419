"""URLs and headers of an endpoint as configured: mended, or refused at the start."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field

from ..service import OPERATIONAL
from ..transport.network import DIRECT, Network, Proxy, read_network

ROUTES = ("/chat/completions", "/completions", "/responses", "/messages")
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


def check_proxy(url: str) -> str:
    """The URL of a proxy, or DIRECT; ValueError if it is neither."""
    if url != DIRECT:
        Proxy.parse(url)
    return url


BaseUrl = Annotated[str, AfterValidator(check_base_url)]
HeaderValue = Annotated[str, AfterValidator(check_header)]
ProxyUrl = Annotated[str, AfterValidator(check_proxy)]


class NetworkConfig(BaseModel):
    """Keys of the way to an endpoint."""

    proxy: ProxyUrl | None = Field(
        None,
        repr=False,
        json_schema_extra=OPERATIONAL,
        description="URL of the proxy for this endpoint, such as http://user:password@proxy:3128 or"
        " socks5://proxy:1080. none: use no proxy. Default: HTTPS_PROXY, HTTP_PROXY,"
        " ALL_PROXY and NO_PROXY of the environment.",
    )
    ca_file: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="PEM file or folder of the accepted certificate authorities. Default:"
        " SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE of the environment, else"
        " the system's.",
    )
    client_certificate: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="PEM file of the certificate that this server shows to the endpoint.",
    )
    client_key: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="PEM file of the certificate's key, if it is not in the same file.",
    )
    client_key_password: str | None = Field(
        None, repr=False, json_schema_extra=OPERATIONAL, description="Password of an encrypted key."
    )

    def network(self) -> Network:
        """The way that these keys describe; ConfigError if it cannot be taken."""
        return read_network(
            self.proxy,
            self.ca_file,
            self.client_certificate,
            self.client_key,
            self.client_key_password,
        )
