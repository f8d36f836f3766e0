"""What a request needs against what a worker has: refused at once if it can never run.

Owns the comparison and its wording; does not know what runs now. Invariant: a request that passes can run
alone on an empty pool to its max_tokens, or, without max_tokens, for at least one token.
"""

from scheduler_svc.core.plan import Capacity, NewRequest, Refusal, RefusalReason


def final_len(request: NewRequest, capacity: Capacity) -> int:
    """Tokens of prompt and output at which the request ends by length."""
    if request.max_tokens is None:
        return capacity.max_model_len
    return min(len(request.prompt) + request.max_tokens, capacity.max_model_len)


def refusal_of_empty(request: NewRequest) -> Refusal | None:
    if len(request.prompt):
        return None
    return Refusal(RefusalReason.EMPTY_PROMPT, "prompt", 0, 1, "prompt: 0 tokens, at least 1 is needed")


def refusal_of(request: NewRequest, capacity: Capacity, max_rows: int) -> Refusal | None:
    """Why the request can never run on such a worker, or None. max_rows: of a step."""
    if request.n > max_rows:
        return Refusal(
            RefusalReason.EXCEEDS_ROWS,
            "n",
            request.n,
            max_rows,
            f"n: {request.n} sequences, a step has at most {max_rows}",
        )
    prompt_len = len(request.prompt)
    outputs = 1 if request.max_tokens is None else request.max_tokens
    total, limit = prompt_len + outputs, capacity.max_model_len
    more = "one token of output" if request.max_tokens is None else f"max_tokens {outputs}"
    what = f"prompt of {prompt_len} tokens and {more}"
    field = "prompt" if request.max_tokens is None or prompt_len >= limit else "max_tokens"
    if total > limit:
        return Refusal(
            RefusalReason.EXCEEDS_MODEL_LEN,
            field,
            total,
            limit,
            f"{field}: {what} make {total} tokens, the model's limit is {limit}",
        )
    stored, pool = total - 1, capacity.num_blocks * capacity.block_size  # the last token is never stored
    if stored > pool:
        field = "prompt" if prompt_len > pool else field
        return Refusal(
            RefusalReason.EXCEEDS_KV_POOL,
            field,
            stored,
            pool,
            f"{field}: {what} need room for {stored} tokens in the KV pool, "
            f"which holds {pool} ({capacity.num_blocks} blocks of {capacity.block_size})",
        )
    return _refusal_of_group(request, capacity, stored)


def _refusal_of_group(request: NewRequest, capacity: Capacity, stored: int) -> Refusal | None:
    """Branches share the full blocks of the prompt, and of what they write themselves nothing."""
    if stored == len(request.prompt):
        return None  # one token each, which none of them stores
    size, limit = capacity.block_size, capacity.num_blocks
    shared = len(request.prompt) // size
    own = -(-stored // size) - shared
    needed = shared + request.n * own
    if request.n == 1 or needed <= limit:
        return None
    return Refusal(
        RefusalReason.EXCEEDS_KV_POOL,
        "n",
        needed,
        limit,
        f"n: {request.n} branches of {stored} stored tokens need {needed} blocks of {size} "
        f"({shared} shared, {own} for each), the KV pool has {limit}",
    )
