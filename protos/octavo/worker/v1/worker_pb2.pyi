from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RowFailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_FAILURE_REASON_UNSPECIFIED: _ClassVar[RowFailureReason]
    ROW_FAILURE_REASON_NON_FINITE_LOGITS: _ClassVar[RowFailureReason]
    ROW_FAILURE_REASON_INTERNAL: _ClassVar[RowFailureReason]
    ROW_FAILURE_REASON_GRAMMAR_FAILED: _ClassVar[RowFailureReason]

class StepFailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_FAILURE_REASON_UNSPECIFIED: _ClassVar[StepFailureReason]
    STEP_FAILURE_REASON_INVALID_PLAN: _ClassVar[StepFailureReason]
    STEP_FAILURE_REASON_STALE_SESSION: _ClassVar[StepFailureReason]
    STEP_FAILURE_REASON_OUT_OF_MEMORY: _ClassVar[StepFailureReason]
    STEP_FAILURE_REASON_DEVICE_ERROR: _ClassVar[StepFailureReason]
ROW_FAILURE_REASON_UNSPECIFIED: RowFailureReason
ROW_FAILURE_REASON_NON_FINITE_LOGITS: RowFailureReason
ROW_FAILURE_REASON_INTERNAL: RowFailureReason
ROW_FAILURE_REASON_GRAMMAR_FAILED: RowFailureReason
STEP_FAILURE_REASON_UNSPECIFIED: StepFailureReason
STEP_FAILURE_REASON_INVALID_PLAN: StepFailureReason
STEP_FAILURE_REASON_STALE_SESSION: StepFailureReason
STEP_FAILURE_REASON_OUT_OF_MEMORY: StepFailureReason
STEP_FAILURE_REASON_DEVICE_ERROR: StepFailureReason

class HoldGrammarRequest(_message.Message):
    __slots__ = ("grammar",)
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    grammar: str
    def __init__(self, grammar: _Optional[str] = ...) -> None: ...

class HoldGrammarResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class GetCapacityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KernelChoice(_message.Message):
    __slots__ = ("op", "backend", "why")
    OP_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    op: str
    backend: str
    why: str
    def __init__(self, op: _Optional[str] = ..., backend: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class MemoryBreakdown(_message.Message):
    __slots__ = ("total_bytes", "budget_bytes", "weight_bytes", "activation_bytes", "graph_bytes", "pool_bytes", "slack_bytes", "host_pool_bytes")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_BYTES_FIELD_NUMBER: _ClassVar[int]
    POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLACK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    budget_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int
    pool_bytes: int
    slack_bytes: int
    host_pool_bytes: int
    def __init__(self, total_bytes: _Optional[int] = ..., budget_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., graph_bytes: _Optional[int] = ..., pool_bytes: _Optional[int] = ..., slack_bytes: _Optional[int] = ..., host_pool_bytes: _Optional[int] = ...) -> None: ...

class GetCapacityResponse(_message.Message):
    __slots__ = ("worker_epoch", "protocol_version", "model_id", "model_fingerprint", "num_blocks", "num_host_blocks", "block_size", "max_batch_tokens", "max_batch_seqs", "max_model_len", "vocab_size", "bytes_per_block", "kv_dtype", "kv_layout", "kernels", "memory", "tensor_parallel_size", "eos_token_ids", "device")
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    worker_epoch: int
    protocol_version: int
    model_id: str
    model_fingerprint: str
    num_blocks: int
    num_host_blocks: int
    block_size: int
    max_batch_tokens: int
    max_batch_seqs: int
    max_model_len: int
    vocab_size: int
    bytes_per_block: int
    kv_dtype: str
    kv_layout: str
    kernels: _containers.RepeatedCompositeFieldContainer[KernelChoice]
    memory: MemoryBreakdown
    tensor_parallel_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    device: str
    def __init__(self, worker_epoch: _Optional[int] = ..., protocol_version: _Optional[int] = ..., model_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., num_blocks: _Optional[int] = ..., num_host_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_batch_tokens: _Optional[int] = ..., max_batch_seqs: _Optional[int] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., bytes_per_block: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., kv_layout: _Optional[str] = ..., kernels: _Optional[_Iterable[_Union[KernelChoice, _Mapping]]] = ..., memory: _Optional[_Union[MemoryBreakdown, _Mapping]] = ..., tensor_parallel_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("hello", "plan")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    hello: SessionHello
    plan: StepPlan
    def __init__(self, hello: _Optional[_Union[SessionHello, _Mapping]] = ..., plan: _Optional[_Union[StepPlan, _Mapping]] = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ("accepted", "result")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    accepted: SessionAccepted
    result: StepResult
    def __init__(self, accepted: _Optional[_Union[SessionAccepted, _Mapping]] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class SessionHello(_message.Message):
    __slots__ = ("session_id", "worker_epoch", "protocol_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    worker_epoch: int
    protocol_version: int
    def __init__(self, session_id: _Optional[int] = ..., worker_epoch: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class SessionAccepted(_message.Message):
    __slots__ = ("session_id", "worker_epoch", "protocol_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    worker_epoch: int
    protocol_version: int
    def __init__(self, session_id: _Optional[int] = ..., worker_epoch: _Optional[int] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias_ids", "logit_bias_values", "suppressed_ids", "min_tokens", "logprobs", "prompt_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias_ids: bytes
    logit_bias_values: _containers.RepeatedScalarFieldContainer[float]
    suppressed_ids: bytes
    min_tokens: int
    logprobs: int
    prompt_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias_ids: _Optional[bytes] = ..., logit_bias_values: _Optional[_Iterable[float]] = ..., suppressed_ids: _Optional[bytes] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class RowSetup(_message.Message):
    __slots__ = ("row", "prompt_len", "sampling", "prompt_ids", "output_ids", "grammar")
    ROW_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    row: int
    prompt_len: int
    sampling: SamplingParams
    prompt_ids: bytes
    output_ids: bytes
    grammar: str
    def __init__(self, row: _Optional[int] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., prompt_ids: _Optional[bytes] = ..., output_ids: _Optional[bytes] = ..., grammar: _Optional[str] = ...) -> None: ...

class BlockOps(_message.Message):
    __slots__ = ("swap_out_pairs", "copy_pairs", "swap_in_pairs", "zero_blocks")
    SWAP_OUT_PAIRS_FIELD_NUMBER: _ClassVar[int]
    COPY_PAIRS_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_PAIRS_FIELD_NUMBER: _ClassVar[int]
    ZERO_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    swap_out_pairs: bytes
    copy_pairs: bytes
    swap_in_pairs: bytes
    zero_blocks: bytes
    def __init__(self, swap_out_pairs: _Optional[bytes] = ..., copy_pairs: _Optional[bytes] = ..., swap_in_pairs: _Optional[bytes] = ..., zero_blocks: _Optional[bytes] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("session_id", "worker_epoch", "step_id", "base_step", "released_rows", "row_setups", "table_rows", "table_offsets", "table_blocks", "block_ops", "rows", "same_rows", "query_lens", "context_lens", "input_ids", "positions", "slot_mapping", "sample_positions", "sample_rows", "no_samples", "traceparent")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_STEP_FIELD_NUMBER: _ClassVar[int]
    RELEASED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROW_SETUPS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    TABLE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_OPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SAME_ROWS_FIELD_NUMBER: _ClassVar[int]
    QUERY_LENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAPPING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ROWS_FIELD_NUMBER: _ClassVar[int]
    NO_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    worker_epoch: int
    step_id: int
    base_step: int
    released_rows: bytes
    row_setups: _containers.RepeatedCompositeFieldContainer[RowSetup]
    table_rows: bytes
    table_offsets: bytes
    table_blocks: bytes
    block_ops: BlockOps
    rows: bytes
    same_rows: bool
    query_lens: bytes
    context_lens: bytes
    input_ids: bytes
    positions: bytes
    slot_mapping: bytes
    sample_positions: bytes
    sample_rows: bytes
    no_samples: bool
    traceparent: str
    def __init__(self, session_id: _Optional[int] = ..., worker_epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., base_step: _Optional[int] = ..., released_rows: _Optional[bytes] = ..., row_setups: _Optional[_Iterable[_Union[RowSetup, _Mapping]]] = ..., table_rows: _Optional[bytes] = ..., table_offsets: _Optional[bytes] = ..., table_blocks: _Optional[bytes] = ..., block_ops: _Optional[_Union[BlockOps, _Mapping]] = ..., rows: _Optional[bytes] = ..., same_rows: bool = ..., query_lens: _Optional[bytes] = ..., context_lens: _Optional[bytes] = ..., input_ids: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., slot_mapping: _Optional[bytes] = ..., sample_positions: _Optional[bytes] = ..., sample_rows: _Optional[bytes] = ..., no_samples: bool = ..., traceparent: _Optional[str] = ...) -> None: ...

class RowFailure(_message.Message):
    __slots__ = ("row", "reason", "detail")
    ROW_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    row: int
    reason: RowFailureReason
    detail: str
    def __init__(self, row: _Optional[int] = ..., reason: _Optional[_Union[RowFailureReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class StepFailure(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: StepFailureReason
    detail: str
    def __init__(self, reason: _Optional[_Union[StepFailureReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("width", "token_ids", "values")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    width: int
    token_ids: bytes
    values: bytes
    def __init__(self, width: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("row", "first_position", "logprobs")
    ROW_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    row: int
    first_position: int
    logprobs: Logprobs
    def __init__(self, row: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("session_id", "worker_epoch", "step_id", "token_ids", "logprobs", "failed_rows", "failure", "forward_seconds", "block_move_seconds", "gap_seconds", "acknowledged_transfers", "prompt_logprobs", "transfer_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_ROWS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MOVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GAP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    worker_epoch: int
    step_id: int
    token_ids: bytes
    logprobs: Logprobs
    failed_rows: _containers.RepeatedCompositeFieldContainer[RowFailure]
    failure: StepFailure
    forward_seconds: float
    block_move_seconds: float
    gap_seconds: float
    acknowledged_transfers: bytes
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    transfer_seconds: float
    def __init__(self, session_id: _Optional[int] = ..., worker_epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ..., failed_rows: _Optional[_Iterable[_Union[RowFailure, _Mapping]]] = ..., failure: _Optional[_Union[StepFailure, _Mapping]] = ..., forward_seconds: _Optional[float] = ..., block_move_seconds: _Optional[float] = ..., gap_seconds: _Optional[float] = ..., acknowledged_transfers: _Optional[bytes] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., transfer_seconds: _Optional[float] = ...) -> None: ...
