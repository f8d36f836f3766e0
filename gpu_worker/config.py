"""The worker's settings: flag over OCTAVO_* variable over default, frozen once read.

Owns the names, defaults and bounds of every setting; knows no device and no model. Invariant: what is
found later (blocks, limits of the model) is never written back here.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from gpu_worker.errors import SettingsError
from octavo.environment import unknown_names
from octavo.trace_context import checked_endpoint

_PROGRAM = "python -m gpu_worker"


class Settings(BaseSettings):
    """One worker process. Lengths and budgets are in tokens; None means: found out at start."""

    model_config = SettingsConfigDict(
        env_prefix="OCTAVO_",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        cli_prog_name=_PROGRAM,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    model: Path = Field(description="a model folder, or a .gguf file")
    listen: str = Field("127.0.0.1:7451", description="unix:/path or host:port; port 0 takes a free one")
    metrics_port: int = Field(
        9451, ge=0, le=65535, description="Prometheus on 127.0.0.1; 0 takes a free port"
    )
    metrics_host: str = Field("127.0.0.1", description="address of the metrics port")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        "auto",
        description="of weights, KV pool and arithmetic; auto: the model's 16 bits on CUDA, "
        "bfloat16 on a CPU that has it fast, else float32",
    )
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = Field(
        "auto",
        description="of the KV pool; auto: --dtype; fp8_e4m3: twice the blocks, on torch and Triton kernels",
    )
    num_blocks: int | None = Field(None, ge=1, description="KV blocks; default: what memory allows")
    block_size: int = Field(16, ge=1, le=4096, description="tokens of a block")
    swap_space: float | None = Field(
        None,
        ge=0,
        description="GiB of host memory for swapped-out sequences; 0: none; default 4 on CUDA, 0 on a CPU",
    )
    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="part of the device's memory to use; default 0.9 on CUDA, 0.25 on a CPU"
    )
    max_num_batched_tokens: int = Field(2048, ge=1, le=1 << 20, description="new tokens of a step")
    max_num_seqs: int = Field(256, ge=1, le=1 << 16, description="rows of a step")
    max_model_len: int | None = Field(None, ge=1, description="longest context; default: the model's limit")
    kernel_backend: Literal["auto", "torch", "triton", "cpu"] = Field(
        "auto", description="who runs the paged kernels"
    )
    attention_backend: Literal["auto", "triton", "flash", "torch"] = Field(
        "auto",
        description="who attends; flash: the flash-attn packages; auto: on CUDA the fastest in a trial, "
        "or what --kernel-backend names",
    )
    model_impl: Literal["auto", "octavo", "transformers"] = Field(
        "auto",
        description="whose code runs the layers: ours, or transformers' around our attention; "
        "auto: ours where it has the architecture",
    )
    quantize: Literal["none", "int8", "int4"] = Field(
        "none", description="on a CPU with compiled kernels: weights in 8 or 4 bits, for single streams"
    )
    cuda_graphs: Literal["auto", "off"] = Field(
        "auto", description="replay steps as CUDA graphs where the device and the kernels can; off: never"
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="dummy: random weights from the config alone"
    )
    num_layers: int | None = Field(
        None, ge=1, description="with --load-format dummy: keep only the first layers"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="threads on a CPU; default: all cores for compiled kernels, one fewer for torch",
    )
    exit_with_parent: bool = Field(False, description="stop when the process that started this one is gone")
    allow_insecure_bind: bool = Field(False, description="serve a non-loopback address without TLS")
    otlp_traces_endpoint: str | None = Field(
        None, description="OTLP/gRPC collector for spans, http(s)://host:port; default: no tracing"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="least level to log")

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _can_trace(cls, value: str | None) -> str | None:
        return value if value is None else checked_endpoint(value)


SETTING_NAMES = tuple(f"OCTAVO_{name.upper()}" for name in Settings.model_fields)


def read_settings(argv: list[str]) -> Settings:
    """Settings of a command line and this process's environment. Raises SettingsError with one line.

    Wrong flags end the process with argparse's message and status 2.
    """
    unknown = unknown_names(os.environ)
    if unknown:
        raise SettingsError(f"unknown variables: {', '.join(unknown)}; unset them or correct their names")
    try:
        settings = Settings(_cli_parse_args=argv)  # type: ignore[call-arg]
    except ValidationError as error:
        raise SettingsError(
            "; ".join(_one_line(item["loc"], item["msg"]) for item in error.errors())
        ) from error
    except SourceError as error:
        raise SettingsError(str(error)) from error
    if settings.num_layers is not None and settings.load_format != "dummy":
        raise SettingsError("num_layers: only with --load-format dummy")
    return settings


def _one_line(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location))}: {message}"
