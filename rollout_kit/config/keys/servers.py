"""Keys about servers that several commands have."""

from pathlib import Path

from pydantic import Field

from .command import CommandKeys


class HeadServerConfig(CommandKeys):
    """The server through which collectors find the servers of an `ng_run`."""

    host: str = Field(default="127.0.0.1", description="Address of the head server.")
    port: int = Field(default=11000, ge=0, le=65535, description="Port of the head server.")


class HttpClientConfig(CommandKeys):
    """Limits of the HTTP client (NeMo Gym calls them `GlobalAIOHTTPAsyncClientConfig`)."""

    global_aiohttp_connector_limit: int | None = Field(
        None,
        ge=0,
        description="Maximum number of connections; 0 = unlimited. Default: by parallelism.",
    )
    global_aiohttp_connector_limit_per_host: int | None = Field(
        None, ge=0, description="Maximum number of connections per host; 0 = unlimited."
    )
    global_aiohttp_client_timeout_s: float | None = Field(
        None, gt=0, description="Time limit of one HTTP request. Default: request_timeout_s."
    )
    max_reply_mb: float = Field(
        256.0,
        gt=0,
        description="Largest reply of another server in megabytes. Model servers have a key of the"
        " same name for replies of their endpoint.",
    )


class CheckoutConfig(CommandKeys):
    """NeMo Gym's code, for servers that this toolkit does not have."""

    nemo_gym: Path | None = Field(
        None,
        description="Checkout of NeMo Gym, for its YAML, servers and files. Default: the working"
        " directory, if it is one.",
    )
    nemo_gym_code: list[str] | str = Field(
        [],
        description="Servers to take from the checkout though this toolkit has them: names of"
        " implementations or instances, or all.",
    )
    nemo_gym_python: str | None = Field(
        None,
        description="Interpreter that has what the checkout's servers need. Default: an environment"
        " that is made once for them.",
    )
    install: bool = Field(
        False, description="Make the environments that are missing, with uv, from the network."
    )


class ServersConfig(CheckoutConfig):
    """How server processes run."""

    max_restarts: int = Field(
        5,
        ge=0,
        description="Give up on a server after this many failed starts in a row, or six times as"
        " many deaths just after a start; 0 = after the first.",
    )
    ready_timeout_s: float = Field(600, gt=0, description="Time for all servers to become ready.")
    log_dir: Path | None = Field(
        Path("logs"), description="Folder with a log file of each server's output; null = no logs."
    )
    auth_token: str | None = Field(
        None,
        min_length=16,
        description="Secret of a run, for servers that listen beyond this machine and for ng_stop;"
        " set it in env.yaml. Default: a new one, in a file that only you can read.",
    )
    ray_address: str | None = Field(
        None,
        description="Address of the Ray cluster for placement: ray and executor=ray, such as"
        " head:6379 or auto; null = a new one on this machine, for the time of the run.",
    )
    record: Path | None = Field(
        None, description="Folder in which to record each call to a model or a tool."
    )
    replay: Path | None = Field(
        None,
        description="Folder of recorded calls to replay, without calling models. With record too,"
        " calls that are missing are sent and recorded.",
    )
    unsafe_code: bool = Field(
        False,
        description="Run model-written code even where the sandbox cannot isolate it, with all"
        " rights of the server.",
    )
