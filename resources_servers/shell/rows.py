"""A row of the shell: what the session starts from, and how its end is verified."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rollout_kit import VerifyRequest

Path = Annotated[str, Field(pattern=r"^/", max_length=4_000)]
"""Absolute, inside of the session."""

Files = dict[Path, str]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CommandVerifier(Strict):
    """Run a command in a fresh session: the start of the row, with `keep` as the policy left it and
    `files`, which the policy never saw."""

    kind: Literal["command"]
    command: str = Field(min_length=1)
    files: Files = {}
    keep: list[Path] = Field([], description="Folders and files; by default the workdir.")
    reward_file: Path | None = Field(
        None, description="A number, or a JSON object with `reward`; without it status 0 is 1.0."
    )
    timeout_s: float = Field(120.0, gt=0)


class Contains(Strict):
    """A file that has each of these texts."""

    contains: list[str] = Field(min_length=1)


class FilesVerifier(Strict):
    """Compare files: the whole text, texts that are in it, or null for a file that must not be."""

    kind: Literal["files"]
    expected: dict[Path, str | Contains | None] = Field(min_length=1)


class FunctionVerifier(Strict):
    """Call a function of the server's `functions_fpath` with the files `paths` and the row."""

    kind: Literal["function"]
    name: str = Field(pattern=r"^[A-Za-z]\w*$")
    paths: list[Path] = []


class HarborVerifier(Strict):
    """Run a task's folder in Harbor's format: its environment, its steps and its tests."""

    kind: Literal["harbor"]
    folder: Path
    digest: str = Field("", description="Of the folder when the row was made.")


Verifier = Annotated[
    CommandVerifier | FilesVerifier | FunctionVerifier | HarborVerifier,
    Field(discriminator="kind"),
]


class Start(BaseModel):
    """The fields of a row from which a session starts."""

    files: Files = {}
    workdir: Path = "/work"
    setup: str = Field("", description="A command that is run before the policy comes.")
    environment: dict[str, str] = {}

    @field_validator("environment")
    @classmethod
    def _has_names(cls, given: dict[str, str]) -> dict[str, str]:
        if bad := [name for name in given if not name or "=" in name or "\0" in name + given[name]]:
            raise ValueError(f"not a name of an environment variable: {bad[0]!r}")
        return given


class ShellRequest(Start, VerifyRequest):
    """A row with its response."""

    verifier: Verifier


def read_start(row: Any) -> Start:
    return Start.model_validate(row if isinstance(row, dict) else {})


def read_harbor(row: Any) -> HarborVerifier | None:
    """The folder that a row names, if it does."""
    wanted = row.get("verifier")
    is_one = isinstance(wanted, dict) and wanted.get("kind") == "harbor"
    return HarborVerifier.model_validate(wanted) if is_one else None
