"""The keys of a harness."""

from pydantic import ConfigDict, Field, model_validator

from rollout_kit.serving.agent import AgentConfig
from rollout_kit.serving.agents.rollout_bounds import RolloutBounds
from rollout_kit.serving.gateway.layout import SideCalls
from rollout_kit.serving.service import OPERATIONAL, ServerRef


class HarnessAgentConfig(AgentConfig):
    model_config = ConfigDict(extra="forbid")

    resources_server: ServerRef = Field(
        description="The resources server: `shell`, where the program runs in a session."
    )
    model_server: ServerRef = Field(description="The model server.")
    command: str = Field(
        "",
        description="Bash command that starts the program. The task is in $TASK and $TASK_FILE.",
    )
    resume_command: str = Field(
        "",
        description="Command that continues the program after a kill, with the files of its last"
        " snapshot. Without this key, `command` starts from the beginning.",
    )
    snapshot_every: int = Field(
        5, ge=1, description="With resume_command: number of model calls between two snapshots."
    )
    function: str = Field(
        "", description="Your own function instead of a command: `my_harness.py:run`."
    )
    outside: bool = Field(
        False,
        description="Run the command outside of the session, on this machine and with your rights."
        " It gets the tools of the resources server over MCP at $MCP_URL.",
    )
    environment: dict[str, str] = Field({}, description="Additional environment variables.")
    files: dict[str, str] = Field(
        {},
        description="Files that are written before the start, as a mapping of paths to texts, which"
        " may contain $OPENAI_BASE_URL etc.",
    )
    model_name: str = Field("model", description="Name of the model that the program sees.")
    time_limit_s: float = Field(
        1800.0, gt=0, description="The program is killed after this many seconds."
    )
    output_bytes: int = Field(
        4000,
        ge=0,
        description="If the program prints more, only the beginning and the end are kept.",
    )
    rollout_limits: RolloutBounds | None = Field(
        None,
        description="Limits of one rollout: {calls, tokens, cost_usd, seconds}. When a limit is"
        " reached, the program gets an error, and the rollout ends as incomplete with"
        " the reason rollout_limit.",
    )
    side_calls: SideCalls = Field(
        "other_system_without_tools",
        description="Calls that are no turns of the task, such as titles: those without tools under"
        " a system prompt that no call with tools has; `without_tools`; `none`; or a list of texts,"
        " one of which stands in their system prompt.",
    )
    gateway_host: str = Field(
        "127.0.0.1",
        json_schema_extra=OPERATIONAL,
        description="Host of the gateway. If the shell runs on another machine, it must be able to"
        " reach it.",
    )
    gateway_port: int = Field(
        0,
        ge=0,
        le=65535,
        json_schema_extra=OPERATIONAL,
        description="Port of the gateway. 0 = a free port.",
    )

    @model_validator(mode="after")
    def _has_one_program(self) -> "HarnessAgentConfig":
        if bool(self.command) == bool(self.function):
            raise ValueError("give a command or a function, and not both")
        if self.resume_command and not self.command:
            raise ValueError("resume_command needs a command")
        if self.outside and (self.resume_command or not self.command):
            raise ValueError("outside needs a command, and has no resume_command")
        return self
