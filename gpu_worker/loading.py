"""From settings to a worker that can run: model, kernels, pool, and what the handshake says of them.

Owns the order of start-up; knows no gRPC server. Invariant: everything that can be refused from the
config alone is refused in `examine`, before any weight is read.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from gpu_worker import announcement, attention_choice, cpu_choice, host
from gpu_worker.compilation import compiling_kernels
from gpu_worker.config import Settings
from gpu_worker.device import DTYPES, Device, open_device
from gpu_worker.errors import SettingsError
from gpu_worker.estimates import activation_bytes, graph_bytes
from gpu_worker.grammars import GrammarCompiler
from gpu_worker.graph_runner import NotCapturableError
from gpu_worker.host_pool import num_host_blocks, open_host_pool, staging_bytes, wanted_host_blocks
from gpu_worker.kv_pool import (
    KV_CACHE_DTYPES,
    KvPool,
    PoolRequest,
    PoolSize,
    bytes_per_block,
    size_pool,
)
from gpu_worker.layer_choice import with_layers
from gpu_worker.model_choice import choose
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models import loader
from gpu_worker.models.cpu_decoder import CpuDecoder, runs_here
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.model import Model
from gpu_worker.models.registry import ModelConfig, ModelShape
from gpu_worker.rows import Limits
from gpu_worker.start_clock import StartClock
from octavo.worker.v1 import worker_pb2
from paged_kernels import dispatch
from paged_kernels.contracts import BackendUnavailableError, KernelError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known before any weight is read."""

    settings: Settings
    files: loader.ModelFiles
    config: ModelShape
    device: Device
    dtype: torch.dtype
    dtype_reason: str
    pool_dtype: torch.dtype
    kernels: dispatch.Kernels
    max_model_len: int
    bytes_per_block: int
    num_host_blocks: int
    graphs: str
    """Empty: steps are captured as CUDA graphs; else why not."""
    clock: StartClock


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker ready to run, and its answer to GetCapacity (without the epoch)."""

    runner: ModelRunner
    size: PoolSize
    capacity: worker_pb2.GetCapacityResponse
    grammars: GrammarCompiler | None


def examine(settings: Settings, clock: StartClock | None = None) -> Examined:
    """Opens the device and reads the model's config. Raises WorkerError (one line) for what cannot work.

    clock: of a start that has begun already.
    """
    clock = clock or StartClock()
    device = open_device(settings.device, settings.threads)
    clock.done("device")
    files = loader.open_model(settings.model, with_weights=settings.load_format != "dummy")
    config, why_transformers = choose(settings, files)
    dtype, why = DTYPES.get(settings.dtype), "asked for"
    if dtype is None:
        dtype, why = cpu_choice.default_dtype(device, settings, config) or device.default_dtype(
            config.stored_dtype
        )
    limit = config.context_limit
    max_model_len = settings.max_model_len or limit
    if max_model_len > limit:
        raise SettingsError(f"must be at most {limit}, the model's limit", "max_model_len")
    pool_dtype = KV_CACHE_DTYPES.get(settings.kv_cache_dtype, dtype)
    try:
        kernels = dispatch.select(
            settings.kernel_backend,
            device.torch_device,
            dtype,
            config.head_dim,
            settings.block_size,
            pool_dtype,
        )
    except BackendUnavailableError as error:
        why = str(error).removeprefix(f"kernel backend {settings.kernel_backend} ")
        raise SettingsError(why, "kernel_backend") from error
    except KernelError as error:
        raise SettingsError(str(error)) from error
    kernels = attention_choice.with_attention(
        kernels, settings, config, (dtype, pool_dtype), device, max_model_len
    )
    kernels = with_layers(kernels, dtype, settings, config, why_transformers)
    block_bytes = bytes_per_block(config, settings.block_size, pool_dtype)
    clock.done("kernels chosen")
    return Examined(
        settings, files, config, device, dtype, why, pool_dtype, kernels, max_model_len, block_bytes,
        wanted_host_blocks(settings.swap_space, device.is_shared, block_bytes),
        _obstacle_to_graphs(settings, device, kernels), clock,
    )  # fmt: skip


def _obstacle_to_graphs(settings: Settings, device: Device, kernels: dispatch.Kernels) -> str:
    if settings.cuda_graphs == "off":
        return "switched off"
    if device.torch_device.type != "cuda":
        return f"no CUDA device, but {device.torch_device.type}"
    if kernels.fused is None:
        return f"the kernels are those of {dispatch.choice_of(kernels, 'store_kvcache').backend}"
    if attention_choice.waits(kernels):
        return "attention by torch reads lengths on the host"
    return ""


def load(found: Examined) -> Loaded:
    """Loads the weights, sizes and allocates the pool, and runs one small step. Raises WorkerError.

    On CUDA kernels compile and the host tier is pinned while the weights are read.
    """
    clock = found.clock
    clock.done("service")
    grammars = _grammars(found)
    decoder, fill = _decoder(found)
    size = size_pool(found.device.memory(), _pool_request(found, decoder.weight_bytes))
    settings = found.settings
    where = found.device.torch_device
    pool = KvPool(found.config, size.num_blocks, settings.block_size, found.pool_dtype, where)
    if found.device.is_shared and found.num_host_blocks:
        held = size.pool_bytes + size.activation_bytes
        num_host_blocks(settings.swap_space or 0.0, found.bytes_per_block, host.memory()[1], held)
    clock.done("memory")
    with ThreadPoolExecutor(1, "host-tier") as beside:
        tier = beside.submit(open_host_pool, pool, found.num_host_blocks)
        runner = ModelRunner(found.device, decoder, pool, found.kernels, _limits(found, size), grammars)
        with compiling_kernels(runner, captured=not found.graphs):
            clock.done("kernels named")
            fill()
            clock.done("weights")
        clock.done("kernels compiled")
        runner.host = tier.result()
    clock.done("host tier")
    runner.warm_up()
    clock.done("first steps")
    _capture(found, runner)
    clock.done("graphs")
    if grammars is not None:
        grammars.wait()
    clock.done("grammars")
    announcement.log(found, size)
    return Loaded(runner, size, announcement.capacity(found, size), grammars)


def _limits(found: Examined, size: PoolSize) -> Limits:
    settings = found.settings
    return Limits(
        num_blocks=size.num_blocks,
        block_size=settings.block_size,
        max_batch_tokens=settings.max_num_batched_tokens,
        max_batch_seqs=settings.max_num_seqs,
        max_model_len=found.max_model_len,
        vocab_size=found.config.vocab_size,
        num_host_blocks=found.num_host_blocks,
    )


def _grammars(found: Examined) -> GrammarCompiler | None:
    """What compiles grammars, where the model folder has a tokenizer and the model an end."""
    path = found.files.path
    tokenizer = (path if path.is_dir() else path.parent) / "tokenizer.json"
    if not tokenizer.is_file() or not found.config.eos_token_ids:
        return None
    return GrammarCompiler(tokenizer, found.config.vocab_size, found.config.eos_token_ids)


def _decoder(found: Examined) -> tuple[Model, Callable[[], None]]:
    """The decoder, packed where the compiled layers run, and what still fills its weights: on CUDA they are
    only allocated. Packed from float32 where that matters.

    A model of transformers has shown that it gives its own logits over a pool.
    """
    if not isinstance(found.config, ModelConfig):
        return _loaded_transformers_model(found), _nothing
    packed = runs_here(found.kernels, found.dtype, found.config)
    quantize = None if found.settings.quantize == "none" else found.settings.quantize
    wide = packed and (quantize or cpu_choice.keeps_file_bits(found.files.source, found.dtype))
    dtype = torch.float32 if wide else found.dtype
    decoder = Decoder(found.config, found.device.torch_device, dtype, found.max_model_len)
    source = found.files.source
    fill = partial(loader.load_dummy, decoder) if source is None else partial(loader.load, decoder, source)
    if not found.device.is_shared:
        return decoder, fill
    fill()
    if not packed:
        return decoder, _nothing
    cpu_choice.take_threads(found.settings)
    model = CpuDecoder(decoder, found.dtype, found.max_model_len, quantize)
    if model.num_compact:
        _log.info("matrices that small steps read in the file's few bits: %d", model.num_compact)
    return model, _nothing


def _nothing() -> None:
    """The weights are there."""


def _loaded_transformers_model(found: Examined) -> Model:
    from gpu_worker.models import self_check, transformers_model

    assert isinstance(found.config, transformers_model.TransformersConfig)
    model = transformers_model.load(found.files, found.config, found.device.torch_device, found.dtype)
    self_check.check(model, found.kernels, found.settings.block_size)
    return model


def _capture(found: Examined, runner: ModelRunner) -> None:
    if found.graphs:
        _log.info("no CUDA graphs: %s", found.graphs)
        return
    try:
        runner.capture_graphs()
    except NotCapturableError as why:
        _log.warning("no CUDA graphs: the layers run on %s: %s", found.kernels.choices[-1].backend, why)
    except torch.OutOfMemoryError as error:
        raise SettingsError(
            f"no memory left for CUDA graphs ({graph_bytes(found) >> 20} MiB were set aside): "
            "lower --gpu-memory-utilization or --num-blocks, or use --cuda-graphs off"
        ) from error


def _pool_request(found: Examined, weight_bytes: int) -> PoolRequest:
    settings = found.settings
    blocks_a_sequence = -(-found.max_model_len // settings.block_size)
    return PoolRequest(
        bytes_per_block=found.bytes_per_block,
        block_size=settings.block_size,
        share=settings.gpu_memory_utilization or found.device.default_share,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes(found) + _staging_bytes(found),
        max_useful_blocks=settings.max_num_seqs * blocks_a_sequence if found.device.is_shared else None,
        num_blocks=settings.num_blocks,
        graph_bytes=0 if found.graphs else graph_bytes(found),
    )


def _staging_bytes(found: Examined) -> int:
    on_device = found.num_host_blocks and not found.device.is_shared
    return staging_bytes(found.bytes_per_block) if on_device else 0
