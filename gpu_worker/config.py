"""The worker's settings: flag over OCTAVO_* variable over default, frozen once read.

Owns the names, defaults and bounds of every setting; knows no device and no model. Invariant: what is
found later (blocks, limits of the model) is never written back here.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from octavo import settings
from octavo.settings import Contradiction, ProgramSettings, variable_of
from octavo.trace_context import checked_endpoint
from octavo.transport import require_host

PROGRAM = "gpu_worker"
DESCRIPTION = "Octavo's GPU worker: runs the steps that a scheduler plans, on a GPU or a CPU."


class Settings(ProgramSettings):
    """One worker process. Lengths and budgets are in tokens; None means: found out at start."""

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
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="longest context, a prompt and an output token at least; default: the model's limit",
    )
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

    @field_validator("metrics_host")
    @classmethod
    def _is_host(cls, value: str) -> str:
        return require_host(value)

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _can_trace(cls, value: str | None) -> str | None:
        return value if value is None else checked_endpoint(value)

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        settings.require_listen(self.listen, self.allow_insecure_bind)
        if self.num_layers is not None and self.load_format != "dummy":
            raise Contradiction("{num_layers}: needs --load-format dummy, not {load_format}")
        for (field, value), others in _BESIDE.items():
            for other, allowed in others.items() if getattr(self, field) == value else ():
                if getattr(self, other) not in allowed:
                    goes = f"goes with {settings.flag_of(other)} {' or '.join(allowed)}"
                    raise Contradiction(f"{{{field}}}: {goes}, not with {{{other}}}")
        return self


_COMPILED = {"device": ("auto", "cpu"), "kv_cache_dtype": ("auto",), "dtype": ("auto", "float32", "bfloat16")}
_QUANTIZED = {
    **_COMPILED,
    "kernel_backend": ("auto", "cpu"),
    "attention_backend": ("auto",),
    "model_impl": ("auto", "octavo"),
}
_BESIDE: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("quantize", "int8"): _QUANTIZED,
    ("quantize", "int4"): _QUANTIZED,
    ("kernel_backend", "cpu"): _COMPILED,
    ("kernel_backend", "triton"): {"dtype": ("auto", "float32", "bfloat16", "float16")},
}
"""What other settings may be beside the value of one; only the compiled CPU layers quantise."""
SETTING_NAMES = tuple(map(variable_of, Settings.model_fields))


def read_settings(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a command line. Exits with status 2 and one line for what is wrong; 0 after --help."""
    return settings.load(Settings, PROGRAM, DESCRIPTION, arguments, environ)


if __name__ == "__main__":  # the look at a command line before anything starts
    read_settings(sys.argv[1:])
