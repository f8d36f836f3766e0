"""For each alert series that make it fire, and series, close to them, that do not.

Owns the cases; knows no rule's text. Invariant: every alert has both kinds (a test compares the names).

Series are in promtool's notation: `0+5x20` begins with 0 and rises by 5 twenty times, a sample a minute.
"""

from dataclasses import dataclass

Series = dict[str, str]
_SOME = "0x60"


@dataclass(frozen=True, slots=True)
class Case:
    """at: the minute in which the alert is looked at."""

    alert: str
    at: int
    fires: Series
    quiet: Series


def _gap(gap: str, waiting: str) -> Series:
    return {
        'octavo_step_gap_seconds_sum{job="scheduler"}': gap,
        'octavo_step_forward_seconds_sum{job="scheduler"}': "0+30x60",
        'octavo_requests_waiting{reason="new"}': waiting,
    }


def _pool(active: str, waiting: str) -> Series:
    return {
        'octavo_kv_blocks{device="0",state="active"}': active,
        'octavo_kv_blocks{device="0",state="free"}': "10x60",
        'octavo_kv_blocks{device="0",state="evictable"}': "10x60",
        'octavo_kv_blocks_capacity{device="0"}': "1000x60" if active == "980x60" else "100x60",
        'octavo_requests_waiting{reason="new"}': waiting,
    }


def _thrown_away(tokens: str) -> Series:
    return {
        'octavo_preempted_tokens_total{mode="recompute"}': tokens,
        "octavo_generated_tokens_total": "0+600x60",
        'octavo_prompt_tokens_total{source="computed"}': "0+400x60",
    }


def _first_token(late: str) -> Series:
    name = "octavo_time_to_first_token_seconds_bucket"
    return {f'{name}{{le="10.0"}}': "0+90x60", f'{name}{{le="20.0"}}': late, f'{name}{{le="+Inf"}}': late}


def _http(failed: str, code: str = "503", route: str = "/v1/completions") -> Series:
    name = "octavo_gateway_requests_total"
    return {
        f'{name}{{code="200",route="/v1/completions"}}': "0+90x60",
        f'{name}{{code="{code}",route="{route}"}}': failed,
    }


def _counter(series: str, rises: str) -> tuple[Series, Series]:
    return {series: rises}, {series: "7x60"}


CASES = (
    Case("OctavoDown", 5, {'up{job="scheduler"}': "1 0x20"}, {'up{job="scheduler"}': "1 0 1x20"}),
    Case(
        "OctavoNoWorker", 8, {"octavo_worker_session_up": "1 0x20"},
        {"octavo_worker_session_up": "1x5 0 1x20"},
    ),
    Case("OctavoGatewayDown", 5, {'up{job="gateway"}': "1 0x20"}, {'up{job="gateway"}': "1 0 1x20"}),
    Case("OctavoGatewayErrors", 20, _http("0+10x60"), _http("0+4x60")),
    Case("OctavoGatewayErrors", 20, _http("0+10x60", "stream_failed"), _http("0+10x60", "429")),
    Case("OctavoGatewayErrors", 20, _http("0+10x60"), _http("0+90x60", route="/health")),
    Case("OctavoInvariantBroken", 5, *_counter("octavo_invariant_violations_total", "0 0 1x20")),
    Case("OctavoInvariantBroken", 5, *({"octavo_kv_blocks_leaked": v} for v in ("1x20", _SOME))),
    Case("OctavoStepsFail", 5, *_counter('octavo_step_failures_total{reason="DEVICE_ERROR"}', "0 0 1x20")),
    Case(
        "OctavoWorkerRestarts", 30, {"octavo_worker_epoch_changes_total": "0 1 2 3 4x60"},
        {"octavo_worker_epoch_changes_total": "0 1 2x60"},
    ),
    Case("OctavoPoolFull", 20, _pool("980x60", "3x60"), _pool("980x60", _SOME)),
    Case("OctavoPoolFull", 20, _pool("980x60", "3x60"), _pool("80x60", "3x60")),
    Case("OctavoPreemptionThrash", 20, _thrown_away("0+300x60"), _thrown_away("0+150x60")),
    Case(
        "OctavoQueueFull", 20, *_counter('octavo_admission_rejections_total{reason="QUEUE_FULL"}', "0+1x60")
    ),
    Case(
        "OctavoQueueFull", 20, {'octavo_admission_rejections_total{reason="QUEUE_FULL"}': "0+1x60"},
        {'octavo_admission_rejections_total{reason="INVALID_FIELD"}': "0+9x60"},
    ),
    Case("OctavoSlowFirstToken", 20, _first_token("0+100x60"), _first_token("0+91x60")),
    Case("OctavoDeviceIdle", 20, _gap("0+20x60", "2x60"), _gap("0+20x60", _SOME)),
    Case("OctavoDeviceIdle", 20, _gap("0+20x60", "2x60"), _gap("0+10x60", "2x60")),
    Case("OctavoOddAnswers", 5, *_counter('octavo_worker_oddities_total{kind="missing_tokens"}', "0 0 1x20")),
    Case("OctavoSlowReaders", 20, *_counter('octavo_requests_total{outcome="stream_backlog"}', "0+1x60")),
)  # fmt: skip
