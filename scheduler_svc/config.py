"""The scheduler's settings: flag, then OCTAVO_* variable, then default.

Owns every setting's name, default and bound; knows no service object. Invariant: a Settings value is
complete, frozen and free of contradictions, and nobody writes to it.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from octavo import settings, trace_context, transport
from octavo.settings import Contradiction, ProgramSettings
from scheduler_svc.core.plan import MAX_DEPTH
from scheduler_svc.setting_files import require_writable, token_in

PROGRAM = "scheduler_svc"
DESCRIPTION = "Octavo's scheduler service: serves gRPC and plans every step of the worker."
_SEED = re.compile(r"[0-9a-fA-F]{32}")


class Settings(ProgramSettings):
    """One scheduler process. The description of each field is its text in --help."""

    model: Path = Field(description="model folder: config.json, tokenizer.json and the files beside them")
    worker: str = Field("127.0.0.1:7451", description="address of the worker: host:port or unix:/path")
    listen: str = Field(
        "127.0.0.1:7450", description="address to serve at: host:port (port 0 picks) or unix:/path"
    )
    allow_insecure_bind: bool = Field(False, description="serve without TLS beyond this machine")
    metrics_host: str = Field("127.0.0.1", description="host of the metrics endpoint")
    metrics_port: int = Field(9450, ge=0, le=65535, description="port of the metrics endpoint; 0 picks one")
    pool_page: bool = Field(True, description="serve the live pool page at /pool of the metrics port")
    pool_page_token_file: str = Field(
        "", description="file with the token that the pool page asks for; needed beyond this machine"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level logged")

    generation_config: Literal["none", "auto"] = Field(
        "none", description="auto: generation_config.json gives the sampling defaults of requests"
    )

    max_num_seqs: int = Field(256, ge=1, le=65536, description="sequences of a step")
    max_n: int = Field(128, ge=1, le=65536, description="sequences of a request; at most those of a step")
    max_num_batched_tokens: int = Field(2048, ge=1, le=1 << 20, description="new tokens of a step")
    max_prefill_chunk: int = Field(
        0, ge=0, description="new tokens of one sequence in a step; 0: no bound of its own"
    )
    priority_aging: float = Field(
        60.0, ge=0,
        description="seconds of waiting that weigh as much as one step of priority; 0: priorities are strict",
    )  # fmt: skip
    watermark_blocks: int = Field(1, ge=0, description="blocks that an admission leaves free")
    depth: int = Field(
        3, ge=1, le=MAX_DEPTH,
        description="steps in flight, 1 to 4; beyond the second only while steps take less than 2 ms",
    )  # fmt: skip
    preemption: Literal["recompute", "swap", "auto"] = Field(
        "auto", description="how a sequence gives up its blocks; auto: what is estimated to cost less"
    )
    prefix_cache: bool = Field(True, description="share the KV blocks of common prefixes")
    hash_seed: str = Field("", description="root of the prefix index, 32 hex digits; empty: random")

    max_queue_requests: int = Field(4096, ge=1, description="requests that may wait for their first step")
    max_queue_tokens: int = Field(
        4 << 20, ge=1, description="prompt tokens that may wait for their first step"
    )
    max_concurrent_streams: int = Field(8192, ge=1, description="calls open at once; more are refused")
    max_prompt_bytes: int = Field(4 << 20, ge=1, description="bytes of a prompt's text")
    max_prompt_tokens: int = Field(1 << 20, ge=1, description="tokens of a prompt")
    stream_backlog_tokens: int = Field(65_536, ge=1, description="unread tokens at which a stream is ended")
    stream_backlog_characters: int = Field(
        1 << 20, ge=1, description="unread characters at which a stream is ended"
    )
    stream_stall_seconds: float = Field(
        60.0, gt=0, description="time without a read at which a stream is ended"
    )

    step_timeout_seconds: float = Field(120.0, gt=0, description="longest time of one step at the worker")
    worker_liveness_seconds: float = Field(4.0, gt=0, description="longest silence of a live worker")
    worker_grace_seconds: float = Field(60.0, ge=0, description="how long requests wait for a lost worker")
    drain_seconds: float = Field(30.0, ge=0, description="how long SIGTERM lets running requests finish")

    check_invariants: Literal["every-step", "idle", "off"] = Field(
        "idle", description="when the invariants of the KV cache are checked: every-step, idle or off"
    )
    record: str = Field(
        "", description="file for the log of the core's inputs, for `octavo replay`; empty: none"
    )
    record_plans: bool = Field(False, description="whole plans in that log, not their digests alone")

    otlp_traces_endpoint: str = Field(
        "", description="OTLP/gRPC collector for spans, http(s)://host:port; empty: no tracing"
    )

    @field_validator("hash_seed")
    @classmethod
    def _sixteen_bytes(cls, value: str) -> str:
        if value and not _SEED.fullmatch(value):
            raise ValueError(f"must be 32 hex digits, not {len(value)} characters")
        return value

    @field_validator("pool_page_token_file")
    @classmethod
    def _holds_a_token(cls, value: str) -> str:
        token_in(value)
        return value

    @field_validator("record")
    @classmethod
    def _can_be_begun(cls, value: str) -> str:
        if value:
            require_writable(Path(value))
        return value

    @field_validator("worker")
    @classmethod
    def _is_address(cls, value: str) -> str:
        transport.require_address(value)
        return value

    @field_validator("metrics_host")
    @classmethod
    def _is_host(cls, value: str) -> str:
        return transport.require_host(value)

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _can_trace(cls, value: str) -> str:
        return trace_context.checked_endpoint(value)

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        _require(
            self,
            "max_num_seqs",
            "max_num_batched_tokens",
            "each sequence of a step needs a token of its budget",
        )
        _require(
            self, "max_prefill_chunk", "max_num_batched_tokens", "a chunk cannot pass the budget of a step"
        )
        _require(
            self,
            "worker_liveness_seconds",
            "step_timeout_seconds",
            "silence must be noticed before a step fails",
        )
        if self.record_plans and not self.record:
            raise Contradiction("{record_plans}: needs --record, a log to put them into")
        settings.require_listen(self.listen, self.allow_insecure_bind)
        private = transport.is_private(f"{self.metrics_host}:0")
        if not (self.allow_insecure_bind or private):
            raise Contradiction("{metrics_host}: is not of this machine alone; pass --allow-insecure-bind")
        if self.pool_page and not private and not self.pool_page_token_file:
            raise Contradiction(
                "{pool_page}: {metrics_host} is not of this machine alone; "
                "give --pool-page-token-file or --no-pool-page"
            )
        return self


def _require(made: Settings, smaller: str, larger: str, why: str) -> None:
    if getattr(made, smaller) > getattr(made, larger):
        raise Contradiction(f"{{{smaller}}} is above {{{larger}}}: {why}")


def load(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a command line. Exits with status 2 and one line for what is wrong; 0 after --help."""
    return settings.load(Settings, PROGRAM, DESCRIPTION, arguments, environ)


if __name__ == "__main__":  # the look at a command line before anything starts
    load(sys.argv[1:])
