"""A report as a table for a terminal: a figure a line, a run a column.

Owns which figures are shown and how they are written; works nothing out. Invariant: what a run does not have
is an empty cell.
"""

from collections.abc import Callable

from rich.table import Table

from scheduler_svc.simulate.results import Figures

Cell = Callable[[Figures], str]


def table_of(report: Figures) -> Table:
    trace = report["trace"]
    title = f"{trace['name']}: {trace['requests']:,} requests, worker {report['worker_model']['name']}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for run in report["runs"]:
        label = run["label"]
        table.add_column(label if label == "contiguous" else f"block {label}", justify="right")
    for name, cell in LINES:
        cells = [cell(run) for run in report["runs"]]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _count(section: str, name: str) -> Cell:
    """Empty where there is none."""
    return lambda run: f"{run[section][name]:,.0f}" if run[section].get(name) else ""


def _percent(section: str, name: str) -> Cell:
    return lambda run: "" if run[section].get(name) is None else f"{run[section][name]:.2%}"


def _total(section: str, name: str) -> Cell:
    """The sum of a breakdown, with its parts."""

    def cell(run: Figures) -> str:
        parts = {key: value for key, value in run[section][name].items() if value}
        return f"{sum(parts.values()):,} ({', '.join(parts)})" if parts else ""

    return cell


def _spread(name: str, unit: float, digits: int) -> Cell:
    def cell(run: Figures) -> str:
        spread = run["latency"][name]
        if spread is None:
            return ""
        return " / ".join(f"{spread[key] * unit:,.{digits}f}" for key in ("p50", "p90", "p99"))

    return cell


LINES: tuple[tuple[str, Cell], ...] = (
    ("blocks of the pool", lambda run: f"{run['num_blocks']:,}"),
    ("trace blocks asked", _count("prefix", "trace_blocks_asked")),
    ("trace blocks found", _count("prefix", "trace_blocks_found")),
    ("trace block hit rate", _percent("prefix", "trace_block_hit_rate")),
    ("prompt tokens looked up", _count("prefix", "lookup_tokens")),
    ("prefix hit rate, tokens", _percent("prefix", "hit_rate")),
    ("of it inside blocks, tokens", _count("prefix", "copied_tokens")),
    ("blocks evicted", _count("prefix", "evicted_blocks")),
    ("waste, of held slots", _percent("memory", "waste")),
    ("blocks saved by sharing, mean", _count("memory", "blocks_saved_by_sharing_mean")),
    ("blocks held, mean", _count("memory", "blocks_active_mean")),
    ("blocks saved by forks", _count("memory", "blocks_saved_by_forks")),
    ("copies on write", _count("memory", "copies_on_write")),
    ("requests refused", _total("requests", "refused")),
    ("requests that gave up waiting", _count("requests", "gave_up_waiting")),
    ("requests running, mean", lambda run: _one_digit(run["throughput"]["requests_running_mean"])),
    ("requests running, most", _count("throughput", "requests_running_most")),
    ("preemptions", _total("preemption", "count")),
    ("blocks swapped out", _count("preemption", "blocks_swapped_out")),
    ("tokens thrown away", _count("preemption", "thrown_away_tokens")),
    ("tokens computed again", _count("preemption", "recomputed_tokens")),
    ("queue wait p50 / p90 / p99, s", _spread("queue_wait_s", 1, 2)),
    ("time to first token, s", _spread("time_to_first_token_s", 1, 2)),
    ("between two tokens, ms", _spread("inter_token_s", 1e3, 1)),
    ("generated tokens a second", _count("throughput", "generated_tokens_per_s")),
    ("worker busy", _percent("throughput", "worker_busy")),
    ("steps", _count("throughput", "steps")),
    ("virtual seconds", _count("throughput", "seconds")),
)


def _one_digit(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
