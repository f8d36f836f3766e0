"""ExplainRequest in words: the core's explanation as a message with plain sentences.

Owns the wording; knows no scheduling rule. Invariant: every sentence says numbers that the message holds as
fields too.
"""

from collections.abc import Callable

from octavo.v1 import kv_cache_pb2 as pb
from scheduler_svc.core.explanation import Explanation, WaitReason
from scheduler_svc.core.plan import SeqId

_REASONS = {
    WaitReason.NO_WORKER: pb.WAIT_REASON_NO_WORKER,
    WaitReason.NO_ROW: pb.WAIT_REASON_NO_ROW,
    WaitReason.BEHIND_OTHERS: pb.WAIT_REASON_BEHIND_OTHERS,
    WaitReason.NO_BLOCKS: pb.WAIT_REASON_NO_BLOCKS,
    WaitReason.TRANSFER: pb.WAIT_REASON_TRANSFER,
    WaitReason.NEXT_STEP: pb.WAIT_REASON_NEXT_STEP,
}


def explain_response(
    found: Explanation, summary: pb.RequestSummary, id_of: Callable[[SeqId], str]
) -> pb.ExplainRequestResponse:
    """id_of: the request id of a sequence."""
    message = pb.ExplainRequestResponse(
        request=summary,
        wait_reasons=[_REASONS[reason] for reason in found.reasons],
        ahead=found.ahead,
        ahead_request_ids=[id_of(seq_id) for seq_id in found.first_ahead],
        promised_blocks=found.promised,
        free_blocks=found.free_blocks,
        evictable_blocks=found.evictable_blocks,
        fenced_blocks=found.fenced_blocks,
        free_rows=found.free_rows,
        admissions=found.admissions,
        preempted_seconds=found.preempted_for,
        next_evicted_blocks=found.next_evicted.tolist(),
        next_victim_request_id=id_of(found.next_victim) if found.next_victim is not None else "",
    )
    if found.need is not None:
        need = found.need
        message.need.CopyFrom(
            pb.BlockNeed(context=need.context, hits=need.hits, idle_hits=need.idle_hits, reserve=need.reserve)
        )
    message.text = "\n".join(_sentences(message))
    return message


def _sentences(message: pb.ExplainRequestResponse) -> list[str]:
    runs = message.request.state == pb.REQUEST_STATE_RUNNING
    told = _running(message) if runs else _waiting(message)
    return [*told, *_past(message), *_next(message)]


def _waiting(message: pb.ExplainRequestResponse) -> list[str]:
    reasons, told = set(message.wait_reasons), []
    if pb.WAIT_REASON_NO_WORKER in reasons:
        told.append("Waits for a worker: none is there, nothing can run.")
    if pb.WAIT_REASON_NO_BLOCKS in reasons:
        told.append("Waits for KV blocks.")
    if pb.WAIT_REASON_TRANSFER in reasons:
        told.append(_transfer(message))
    if pb.WAIT_REASON_NO_ROW in reasons:
        told.append("Waits for a row: all rows of a step are taken.")
    if pb.WAIT_REASON_BEHIND_OTHERS in reasons:
        named = ", ".join(message.ahead_request_ids)
        more = ", ..." if message.ahead > len(message.ahead_request_ids) else ""
        told.append(f"Behind {_count(message.ahead, 'request')} in the queue: {named}{more}.")
    if pb.WAIT_REASON_NEXT_STEP in reasons:
        told.append("Nothing is missing: the next step with tokens left takes it.")
    return told + (_needs(message) if message.HasField("need") else [])


def _needs(message: pb.ExplainRequestResponse) -> list[str]:
    need, tokens = message.need, message.request.prompt_tokens + message.request.output_tokens
    parts = [f"{need.context} for its context of {_count(tokens, 'token')}"]
    if need.hits:
        parts.append(f"less {need.hits} found in the prefix cache")
    if need.idle_hits:
        parts.append(f"plus {need.idle_hits} of those, which nobody holds and which stop being available")
    if need.reserve:
        parts.append(f"plus a reserve of {need.reserve} for those that run")
    total = need.context - need.hits + need.idle_hits + need.reserve
    spare = message.free_blocks + message.evictable_blocks - message.promised_blocks
    parts_of_spare = f"{message.free_blocks} free and {message.evictable_blocks} evictable"
    if message.promised_blocks:
        parts_of_spare += f", less {message.promised_blocks} promised to prefills under way"
    fenced = f", beside {message.fenced_blocks} fenced" if message.fenced_blocks else ""
    missing = f"; {total - spare} are missing{fenced}" if total > spare else ""
    return [
        f"It needs {_count(total, 'block')}: {', '.join(parts)}.",
        f"The pool can spare {spare}: {parts_of_spare}{missing}.",
    ]


def _transfer(message: pb.ExplainRequestResponse) -> str:
    fenced = message.fenced_blocks
    are = "is" if fenced == 1 else "are"
    until = f"; {_count(fenced, 'block')} {are} fenced until then" if fenced else ""
    return f"Waits for a transfer to host memory to end{until}."


def _running(message: pb.ExplainRequestResponse) -> list[str]:
    request = message.request
    known = request.prompt_tokens + request.output_tokens
    if not request.output_tokens and request.computed_tokens < known:
        return [
            f"Runs: {request.computed_tokens} of {_count(known, 'token')} of its context are scheduled, "
            f"in {_count(request.blocks, 'block')}."
        ]
    generated = _count(request.output_tokens, "token")
    told = [f"Runs: {generated} generated, {_count(request.blocks, 'block')} held."]
    return told + [_transfer(message)] * (pb.WAIT_REASON_TRANSFER in message.wait_reasons)


def _past(message: pb.ExplainRequestResponse) -> list[str]:
    request, told = message.request, []
    if message.admissions:
        told.append(
            f"{request.cached_prompt_tokens} of its {_count(request.prompt_tokens, 'prompt token')} came "
            "from the prefix cache at its first admission."
        )
    if request.preemptions:
        since = f", the last time {message.preempted_seconds:.1f} s ago"
        last = since if message.HasField("preempted_seconds") else ""
        host = f"; {_count(request.host_blocks, 'block')} in host memory" if request.host_blocks else ""
        told.append(f"Preempted {_count(request.preemptions, 'time')}{last}{host}.")
    return told


def _next(message: pb.ExplainRequestResponse) -> list[str]:
    if not message.next_evicted_blocks and not message.next_victim_request_id:
        return []
    order = [_count(message.free_blocks, "free block")] if message.free_blocks else []
    if message.next_evicted_blocks:
        named = ", ".join(map(str, message.next_evicted_blocks))
        order.append(f"evictable ones, least recently used first ({named})")
    if message.next_victim_request_id:
        order.append(f"the blocks of request {message.next_victim_request_id}, which would be preempted")
    return [f"Taken next when blocks are needed: {'; then '.join(order)}."]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
