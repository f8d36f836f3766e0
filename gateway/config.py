"""The gateway's settings: flag, then OCTAVO_* variable, then default.

Owns every setting's name, default and bound; knows no request. Invariant: a Settings value is complete and
frozen, and nobody writes to it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from gateway.key_file import keys_in
from octavo import settings, trace_context, transport
from octavo.settings import Contradiction, ProgramSettings

PROGRAM = "gateway"
DESCRIPTION = "Octavo's OpenAI-compatible HTTP gateway, a client of the scheduler's gRPC service."


class Settings(ProgramSettings):
    """One gateway process. The description of each field is its text in --help."""

    server: str = Field("127.0.0.1:7450", description="address of the scheduler: host:port or unix:/path")
    listen: str = Field("127.0.0.1:8000", description="address to serve HTTP at: host:port; port 0 picks")
    allow_insecure_bind: bool = Field(False, description="serve without TLS beyond this machine")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")
    api_key_file: Path | None = Field(
        None, description="file of accepted API keys, one a line; without it anybody may ask"
    )
    salt_by_api_key: bool = Field(
        False, description="requests of different API keys never share prefix cache blocks"
    )
    served_model_name: str = Field("", description="name of the model over HTTP; empty: the model's own")
    max_body_bytes: int = Field(16 << 20, ge=1, description="bytes of a request's body")
    max_prompts: int = Field(128, ge=1, description="prompts of one /v1/completions request")
    body_seconds: float = Field(
        60.0, gt=0, description="time that a client has to send its request's head, and then its body"
    )
    stall_seconds: float = Field(
        60.0, gt=0, description="time without a read at which a client's connection is ended"
    )
    drain_seconds: float = Field(30.0, ge=0, description="how long SIGTERM lets running requests finish")

    otlp_traces_endpoint: str = Field(
        "", description="OTLP/gRPC collector for spans, http(s)://host:port; empty: no tracing"
    )

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _can_trace(cls, value: str) -> str:
        return trace_context.checked_endpoint(value)

    @field_validator("api_key_file")
    @classmethod
    def _holds_keys(cls, value: Path | None) -> Path | None:
        if value is not None:
            keys_in(value)
        return value

    @field_validator("server")
    @classmethod
    def _is_address(cls, value: str) -> str:
        transport.require_address(value)
        return value

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        if self.listen.startswith("unix"):
            raise Contradiction("{listen}: must be host:port")
        settings.require_listen(self.listen, self.allow_insecure_bind)
        if self.salt_by_api_key and self.api_key_file is None:
            raise Contradiction("{salt_by_api_key}: needs --api-key-file")
        return self


def load(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a command line. Exits with status 2 and one line for what is wrong; 0 after --help."""
    return settings.load(Settings, PROGRAM, DESCRIPTION, arguments, environ)


if __name__ == "__main__":  # the look at a command line before anything starts
    load(sys.argv[1:])
