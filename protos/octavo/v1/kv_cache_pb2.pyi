from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_WAITING: _ClassVar[RequestState]
    REQUEST_STATE_RUNNING: _ClassVar[RequestState]
    REQUEST_STATE_PREEMPTED: _ClassVar[RequestState]

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_NO_WORKER: _ClassVar[WaitReason]
    WAIT_REASON_NO_ROW: _ClassVar[WaitReason]
    WAIT_REASON_BEHIND_OTHERS: _ClassVar[WaitReason]
    WAIT_REASON_NO_BLOCKS: _ClassVar[WaitReason]
    WAIT_REASON_NEXT_STEP: _ClassVar[WaitReason]
    WAIT_REASON_TRANSFER: _ClassVar[WaitReason]
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_WAITING: RequestState
REQUEST_STATE_RUNNING: RequestState
REQUEST_STATE_PREEMPTED: RequestState
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_NO_WORKER: WaitReason
WAIT_REASON_NO_ROW: WaitReason
WAIT_REASON_BEHIND_OTHERS: WaitReason
WAIT_REASON_NO_BLOCKS: WaitReason
WAIT_REASON_NEXT_STEP: WaitReason
WAIT_REASON_TRANSFER: WaitReason

class RequestSummary(_message.Message):
    __slots__ = ("request_id", "state", "prompt_tokens", "cached_prompt_tokens", "computed_tokens", "output_tokens", "blocks", "preemptions", "priority", "age_seconds", "index", "host_blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: RequestState
    prompt_tokens: int
    cached_prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    blocks: int
    preemptions: int
    priority: int
    age_seconds: float
    index: int
    host_blocks: int
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., preemptions: _Optional[int] = ..., priority: _Optional[int] = ..., age_seconds: _Optional[float] = ..., index: _Optional[int] = ..., host_blocks: _Optional[int] = ...) -> None: ...

class GetKvCacheStatsRequest(_message.Message):
    __slots__ = ("include_requests",)
    INCLUDE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    include_requests: bool
    def __init__(self, include_requests: bool = ...) -> None: ...

class GetKvCacheStatsResponse(_message.Message):
    __slots__ = ("block_size", "bytes_per_block", "num_blocks", "free_blocks", "evictable_blocks", "active_blocks", "fenced_blocks", "shared_blocks", "block_refs", "slots_allocated", "slots_filled", "prefix_index_entries", "prefix_lookup_tokens", "prefix_hit_tokens", "evicted_blocks", "preemptions", "running_requests", "waiting_requests", "worker_ready", "worker_epoch", "steps", "generated_tokens", "computed_prompt_tokens", "requests")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_REFS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FILLED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_INDEX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LOOKUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_READY_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    bytes_per_block: int
    num_blocks: int
    free_blocks: int
    evictable_blocks: int
    active_blocks: int
    fenced_blocks: int
    shared_blocks: int
    block_refs: int
    slots_allocated: int
    slots_filled: int
    prefix_index_entries: int
    prefix_lookup_tokens: int
    prefix_hit_tokens: int
    evicted_blocks: int
    preemptions: int
    running_requests: int
    waiting_requests: int
    worker_ready: bool
    worker_epoch: str
    steps: int
    generated_tokens: int
    computed_prompt_tokens: int
    requests: _containers.RepeatedCompositeFieldContainer[RequestSummary]
    def __init__(self, block_size: _Optional[int] = ..., bytes_per_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., evictable_blocks: _Optional[int] = ..., active_blocks: _Optional[int] = ..., fenced_blocks: _Optional[int] = ..., shared_blocks: _Optional[int] = ..., block_refs: _Optional[int] = ..., slots_allocated: _Optional[int] = ..., slots_filled: _Optional[int] = ..., prefix_index_entries: _Optional[int] = ..., prefix_lookup_tokens: _Optional[int] = ..., prefix_hit_tokens: _Optional[int] = ..., evicted_blocks: _Optional[int] = ..., preemptions: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., worker_ready: bool = ..., worker_epoch: _Optional[str] = ..., steps: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., computed_prompt_tokens: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[RequestSummary, _Mapping]]] = ...) -> None: ...

class GetPoolMapRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPoolMapResponse(_message.Message):
    __slots__ = ("block_size", "num_blocks", "state", "ref_count", "fill", "cached")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REF_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_blocks: int
    state: bytes
    ref_count: bytes
    fill: bytes
    cached: bytes
    def __init__(self, block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., state: _Optional[bytes] = ..., ref_count: _Optional[bytes] = ..., fill: _Optional[bytes] = ..., cached: _Optional[bytes] = ...) -> None: ...

class GetSequenceBlocksRequest(_message.Message):
    __slots__ = ("request_id", "index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class SequenceBlock(_message.Message):
    __slots__ = ("block_id", "ref_count", "fill", "hash_prefix", "tier")
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    REF_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    HASH_PREFIX_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    block_id: int
    ref_count: int
    fill: int
    hash_prefix: str
    tier: str
    def __init__(self, block_id: _Optional[int] = ..., ref_count: _Optional[int] = ..., fill: _Optional[int] = ..., hash_prefix: _Optional[str] = ..., tier: _Optional[str] = ...) -> None: ...

class GetSequenceBlocksResponse(_message.Message):
    __slots__ = ("request_id", "index", "num_tokens", "blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    num_tokens: int
    blocks: _containers.RepeatedCompositeFieldContainer[SequenceBlock]
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., num_tokens: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[SequenceBlock, _Mapping]]] = ...) -> None: ...

class ExplainRequestRequest(_message.Message):
    __slots__ = ("request_id", "index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class BlockNeed(_message.Message):
    __slots__ = ("context", "hits", "idle_hits", "reserve")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    IDLE_HITS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    context: int
    hits: int
    idle_hits: int
    reserve: int
    def __init__(self, context: _Optional[int] = ..., hits: _Optional[int] = ..., idle_hits: _Optional[int] = ..., reserve: _Optional[int] = ...) -> None: ...

class ExplainRequestResponse(_message.Message):
    __slots__ = ("text", "request", "wait_reasons", "ahead", "ahead_request_ids", "need", "promised_blocks", "free_blocks", "evictable_blocks", "free_rows", "admissions", "preempted_seconds", "next_evicted_blocks", "next_victim_request_id", "fenced_blocks")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WAIT_REASONS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    AHEAD_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_ROWS_FIELD_NUMBER: _ClassVar[int]
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_VICTIM_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    text: str
    request: RequestSummary
    wait_reasons: _containers.RepeatedScalarFieldContainer[WaitReason]
    ahead: int
    ahead_request_ids: _containers.RepeatedScalarFieldContainer[str]
    need: BlockNeed
    promised_blocks: int
    free_blocks: int
    evictable_blocks: int
    free_rows: int
    admissions: int
    preempted_seconds: float
    next_evicted_blocks: _containers.RepeatedScalarFieldContainer[int]
    next_victim_request_id: str
    fenced_blocks: int
    def __init__(self, text: _Optional[str] = ..., request: _Optional[_Union[RequestSummary, _Mapping]] = ..., wait_reasons: _Optional[_Iterable[_Union[WaitReason, str]]] = ..., ahead: _Optional[int] = ..., ahead_request_ids: _Optional[_Iterable[str]] = ..., need: _Optional[_Union[BlockNeed, _Mapping]] = ..., promised_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., evictable_blocks: _Optional[int] = ..., free_rows: _Optional[int] = ..., admissions: _Optional[int] = ..., preempted_seconds: _Optional[float] = ..., next_evicted_blocks: _Optional[_Iterable[int]] = ..., next_victim_request_id: _Optional[str] = ..., fenced_blocks: _Optional[int] = ...) -> None: ...

class FlushPrefixCacheRequest(_message.Message):
    __slots__ = ("cache_salt",)
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    cache_salt: str
    def __init__(self, cache_salt: _Optional[str] = ...) -> None: ...

class FlushPrefixCacheResponse(_message.Message):
    __slots__ = ("blocks_forgotten",)
    BLOCKS_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    blocks_forgotten: int
    def __init__(self, blocks_forgotten: _Optional[int] = ...) -> None: ...

class WatchKvEventsRequest(_message.Message):
    __slots__ = ("after", "stream_id")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    after: int
    stream_id: int
    def __init__(self, after: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class KvEvent(_message.Message):
    __slots__ = ("number", "stored", "removed", "cleared", "snapshot_complete")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    number: int
    stored: BlockStored
    removed: BlockRemoved
    cleared: CacheCleared
    snapshot_complete: SnapshotComplete
    def __init__(self, number: _Optional[int] = ..., stored: _Optional[_Union[BlockStored, _Mapping]] = ..., removed: _Optional[_Union[BlockRemoved, _Mapping]] = ..., cleared: _Optional[_Union[CacheCleared, _Mapping]] = ..., snapshot_complete: _Optional[_Union[SnapshotComplete, _Mapping]] = ...) -> None: ...

class BlockStored(_message.Message):
    __slots__ = ("key", "parent_key", "token_ids", "block_id", "tier")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent_key: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    block_id: int
    tier: str
    def __init__(self, key: _Optional[bytes] = ..., parent_key: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ..., block_id: _Optional[int] = ..., tier: _Optional[str] = ...) -> None: ...

class BlockRemoved(_message.Message):
    __slots__ = ("key", "block_id", "tier")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    block_id: int
    tier: str
    def __init__(self, key: _Optional[bytes] = ..., block_id: _Optional[int] = ..., tier: _Optional[str] = ...) -> None: ...

class CacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchKvEventsResponse(_message.Message):
    __slots__ = ("events", "stream_id")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[KvEvent]
    stream_id: int
    def __init__(self, events: _Optional[_Iterable[_Union[KvEvent, _Mapping]]] = ..., stream_id: _Optional[int] = ...) -> None: ...
