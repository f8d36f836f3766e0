"""Every OCTAVO_* name that a program of this repository reads.

Owns the list and the check for misspelt names; knows no setting's meaning. Invariant: each program's
settings are a subset of its tuple here (a test of that program compares them), so that a name unknown here
is unknown everywhere.
"""

import re
from collections.abc import Iterable, Mapping

PREFIX = "OCTAVO_"

SCHEDULER_NAMES: tuple[str, ...] = (
    "OCTAVO_MODEL",
    "OCTAVO_WORKER",
    "OCTAVO_LISTEN",
    "OCTAVO_ALLOW_INSECURE_BIND",
    "OCTAVO_METRICS_HOST",
    "OCTAVO_METRICS_PORT",
    "OCTAVO_POOL_PAGE",
    "OCTAVO_POOL_PAGE_TOKEN_FILE",
    "OCTAVO_LOG_LEVEL",
    "OCTAVO_GENERATION_CONFIG",
    "OCTAVO_MAX_N",
    "OCTAVO_MAX_NUM_SEQS",
    "OCTAVO_MAX_NUM_BATCHED_TOKENS",
    "OCTAVO_MAX_PREFILL_CHUNK",
    "OCTAVO_WATERMARK_BLOCKS",
    "OCTAVO_DEPTH",
    "OCTAVO_PREFIX_CACHE",
    "OCTAVO_PRIORITY_AGING",
    "OCTAVO_PREEMPTION",
    "OCTAVO_HASH_SEED",
    "OCTAVO_MAX_QUEUE_REQUESTS",
    "OCTAVO_MAX_QUEUE_TOKENS",
    "OCTAVO_MAX_CONCURRENT_STREAMS",
    "OCTAVO_MAX_PROMPT_BYTES",
    "OCTAVO_MAX_PROMPT_TOKENS",
    "OCTAVO_STREAM_BACKLOG_TOKENS",
    "OCTAVO_STREAM_BACKLOG_CHARACTERS",
    "OCTAVO_STREAM_STALL_SECONDS",
    "OCTAVO_STEP_TIMEOUT_SECONDS",
    "OCTAVO_WORKER_LIVENESS_SECONDS",
    "OCTAVO_WORKER_GRACE_SECONDS",
    "OCTAVO_DRAIN_SECONDS",
    "OCTAVO_CHECK_INVARIANTS",
    "OCTAVO_RECORD",
    "OCTAVO_RECORD_PLANS",
    "OCTAVO_OTLP_TRACES_ENDPOINT",
)
WORKER_NAMES: tuple[str, ...] = (
    "OCTAVO_MODEL",
    "OCTAVO_LISTEN",
    "OCTAVO_METRICS_PORT",
    "OCTAVO_METRICS_HOST",
    "OCTAVO_DEVICE",
    "OCTAVO_DTYPE",
    "OCTAVO_KV_CACHE_DTYPE",
    "OCTAVO_NUM_BLOCKS",
    "OCTAVO_BLOCK_SIZE",
    "OCTAVO_SWAP_SPACE",
    "OCTAVO_GPU_MEMORY_UTILIZATION",
    "OCTAVO_MAX_NUM_BATCHED_TOKENS",
    "OCTAVO_MAX_NUM_SEQS",
    "OCTAVO_MAX_MODEL_LEN",
    "OCTAVO_CUDA_GRAPHS",
    "OCTAVO_KERNEL_BACKEND",
    "OCTAVO_ATTENTION_BACKEND",
    "OCTAVO_MODEL_IMPL",
    "OCTAVO_LOAD_FORMAT",
    "OCTAVO_QUANTIZE",
    "OCTAVO_NUM_LAYERS",
    "OCTAVO_THREADS",
    "OCTAVO_EXIT_WITH_PARENT",
    "OCTAVO_OTLP_TRACES_ENDPOINT",
    "OCTAVO_ALLOW_INSECURE_BIND",
    "OCTAVO_LOG_LEVEL",
)
GATEWAY_NAMES: tuple[str, ...] = (
    "OCTAVO_SERVER",
    "OCTAVO_LISTEN",
    "OCTAVO_ALLOW_INSECURE_BIND",
    "OCTAVO_LOG_LEVEL",
    "OCTAVO_API_KEY_FILE",
    "OCTAVO_SALT_BY_API_KEY",
    "OCTAVO_SERVED_MODEL_NAME",
    "OCTAVO_MAX_BODY_BYTES",
    "OCTAVO_MAX_PROMPTS",
    "OCTAVO_BODY_SECONDS",
    "OCTAVO_STALL_SECONDS",
    "OCTAVO_OTLP_TRACES_ENDPOINT",
    "OCTAVO_DRAIN_SECONDS",
)
CLIENT_NAMES: tuple[str, ...] = ("OCTAVO_SERVER",)
KERNEL_NAMES: tuple[str, ...] = ("OCTAVO_KERNEL_CACHE",)

_KUBERNETES = re.compile(
    r"^OCTAVO_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$"
)


def unknown_names(environ: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """OCTAVO_* names of an environment that no program reads, sorted; what Kubernetes injects for a service
    is let pass.
    """
    known = {*SCHEDULER_NAMES, *WORKER_NAMES, *GATEWAY_NAMES, *CLIENT_NAMES, *KERNEL_NAMES, *more}
    return sorted(
        name
        for name in environ
        if name.startswith(PREFIX) and name not in known and not _KUBERNETES.match(name)
    )
