"""The contiguous baseline: one reservation of the model's limit for each request, through the same core."""

from scheduler_svc.simulate.runs import contiguous
from scheduler_svc.simulate.simulator import Setup
from scheduler_svc.simulate.trace import Trace
from tests.unit.simulate.traces import figures, made_trace, session_trace, setup, simulate

POOL_TOKENS, LIMIT = 1000, 100


def both(**given: object) -> tuple[Setup, Setup]:
    """The paged setup and the baseline, of equal memory."""
    paged = setup(10, POOL_TOKENS // 10, watermark_blocks=0, **given)
    base = Setup(paged.config, 10, POOL_TOKENS // 10, LIMIT, paged.arrival_scale)
    return base, contiguous(base, POOL_TOKENS)


def crowd(count: int = 40) -> Trace:
    """Requests that need a tenth of the limit each."""
    return made_trace(*((0.0, 5, 5) for _ in range(count)))


def test_it_runs_as_many_requests_as_there_are_reservations() -> None:
    paged, reserved = both()
    assert simulate(crowd(), reserved).most_rows == POOL_TOKENS // LIMIT
    assert simulate(crowd(), paged).most_rows == 40


def test_it_holds_what_it_reserved_whatever_the_request_needs() -> None:
    run = figures(crowd(1), both()[1])
    assert run["memory"]["slots_allocated_mean"] <= LIMIT
    assert run["memory"]["blocks_active_most"] == 1
    assert run["memory"]["waste"] > 0.85


def test_it_never_preempts_shares_or_grows() -> None:
    reserved = both()[1]
    head = list(range(40))
    trace = session_trace([head + [i] * 9 for i in range(20)], output_len=45)
    run = figures(trace, reserved)
    assert run["preemption"]["count"]["recompute"] == 0
    assert run["memory"]["blocks_saved_by_sharing_most"] == 0
    assert run["prefix"]["hit_tokens"] == 0
    assert run["memory"]["blocks_allocated"] == 20
    assert run["requests"]["ended"] == {"length": 20}


def test_at_a_time_limit_it_turns_away_what_paging_serves() -> None:
    paged, reserved = both()
    outcomes = []
    for given in (paged, reserved):
        timed = Setup(given.config, given.block_size, given.num_blocks, LIMIT, queue_timeout=0.02,
                      spare_blocks=given.spare_blocks)  # fmt: skip
        outcomes.append(figures(crowd(), timed)["requests"]["gave_up_waiting"])
    assert outcomes[0] == 0
    assert outcomes[1] == 30
