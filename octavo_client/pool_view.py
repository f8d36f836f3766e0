"""Draws a KV pool: bars, block map, requests, prefix cache, as rich renderables.

Owns colours and letters of block states; knows no server and no clock. Invariant: without colours each
state still has a letter of its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octavo_client.console import safe
from octavo_client.views import Explanation, PoolMap, PoolStats, RequestView


@dataclass(frozen=True)
class Look:
    """How a kind of block is drawn."""

    name: str
    letter: str
    style: str


FREE = Look("free", "·", "bright_black")
EVICTABLE = Look("evictable", "o", "blue")
ACTIVE = Look("active", "#", "green")
SHARED = Look("shared", "S", "bright_magenta")
FENCED = Look("fenced", "!", "red")
_BY_KIND = (FREE, EVICTABLE, FENCED, ACTIVE, SHARED)
"""Weakest first: a cell that stands for several blocks shows the strongest of them."""
_KIND_OF_STATE = np.array([0, 1, 3, 2], np.uint8)
_SHARED_KIND = 4
_STATE_FREE, _STATE_FENCED = 0, 3
EXPLAINED = 2
"""Waiting requests that a frame explains, and the sentences it gives each."""
_SENTENCES = 4


@dataclass(frozen=True)
class Rates:
    """Per second, between two readings; None before there are two."""

    tokens: float
    steps: float


def pool_bar(stats: PoolStats, width: int) -> Text:
    """One line of `width` cells split by state, and the numbers."""
    parts = (
        (SHARED, stats.shared_blocks),
        (ACTIVE, max(0, stats.active_blocks - stats.shared_blocks)),
        (FENCED, stats.fenced_blocks),
        (EVICTABLE, stats.evictable_blocks),
        (FREE, stats.free_blocks),
    )
    bar = Text()
    for (look, _), cells in zip(parts, _cells([count for _, count in parts], width), strict=True):
        bar.append(look.letter * cells, style=look.style)
    bar.append("\n")
    for look, count in parts:
        bar.append(f"{look.letter} ", style=look.style).append(f"{look.name} {count}  ")
    return bar.append(f"of {stats.num_blocks} blocks of {stats.block_size} tokens", style="dim")


def _cells(counts: list[int], width: int) -> list[int]:
    """Splits width in proportion; a count above zero has one cell at least, and the sum is exact."""
    total = sum(counts)
    if total == 0:
        return [0] * len(counts)
    cells = [max(1, round(count * width / total)) if count else 0 for count in counts]
    while (over := sum(cells) - width) != 0:
        largest = max(range(len(cells)), key=cells.__getitem__)
        cells[largest] -= 1 if over > 0 else -1
    return cells


def block_kinds(pool: PoolMap) -> npt.NDArray[np.uint8]:
    """For each block its index into the looks: an active block with two holders or more is shared."""
    kinds = _KIND_OF_STATE[np.minimum(pool.state, _STATE_FENCED)]
    return np.where(pool.ref_count >= 2, np.uint8(_SHARED_KIND), kinds).astype(np.uint8)


def block_map(pool: PoolMap, width: int, max_rows: int) -> Text:
    """Blocks in order, one letter each; in a large pool one letter for several, the strongest of them."""
    kinds = block_kinds(pool)
    per_cell = max(1, -(-len(kinds) // max(1, width * max_rows)))
    padded = np.zeros(-(-len(kinds) // per_cell) * per_cell, np.uint8)
    padded[: len(kinds)] = kinds
    cells = padded.reshape(-1, per_cell).max(axis=1)
    text = Text(f"block map, 1 letter = {per_cell} block{'s' if per_cell > 1 else ''}\n", style="dim")
    for start in range(0, len(cells), width):
        row = cells[start : start + width]
        edges = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        for left, right in itertools.pairwise(edges):
            look = _BY_KIND[int(row[left])]
            text.append(look.letter * (right - left), style=look.style)
        text.append("\n")
    return text


def facts(stats: PoolStats, rates: Rates | None) -> Table:
    """The numbers beside the map, two columns."""
    looked, hit = stats.prefix_lookup_tokens, stats.prefix_hit_tokens
    fill = f"{stats.slots_filled / stats.slots_allocated:.0%}" if stats.slots_allocated else "-"
    rows = (
        ("tokens/s", f"{rates.tokens:,.1f}" if rates else "-"),
        ("steps/s", f"{rates.steps:,.1f}" if rates else "-"),
        ("requests", f"{stats.running_requests} running, {stats.waiting_requests} waiting"),
        ("sharing", f"{stats.saved_blocks} blocks saved now ({stats.block_refs} table entries)"),
        ("slots filled", f"{stats.slots_filled} of {stats.slots_allocated} ({fill})"),
        ("prefix hits", f"{hit} of {looked} tokens" + (f" ({hit / looked:.0%})" if looked else "")),
        ("prefix index", f"{stats.prefix_index_entries} blocks, {stats.evicted_blocks} evicted"),
        ("preemptions", str(stats.preemptions)),
        ("generated", f"{stats.generated_tokens} tokens in {stats.steps} steps"),
    )
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="cyan"), Text(value))
    return table


def request_table(requests: tuple[RequestView, ...], limit: int) -> RenderableType:
    """The live requests, oldest first."""
    table = Table(box=None, padding=(0, 1), header_style="bold cyan")
    table.add_column("request", no_wrap=True, max_width=36)
    table.add_column("state")
    for name in ("prompt", "cached", "computed", "output", "blocks", "preempted", "priority", "age"):
        table.add_column(name, justify="right")
    styles = {"running": "green", "waiting": "yellow", "preempted": "red"}
    for r in sorted(requests, key=lambda request: -request.age_seconds)[:limit]:
        held = f"{r.host_blocks} host" if r.host_blocks else r.blocks
        numbers = (r.prompt_tokens, r.cached_prompt_tokens, r.computed_tokens, r.output_tokens, held)
        last = (r.preemptions, r.priority, f"{r.age_seconds:.1f} s")
        state = Text(r.state, style=styles.get(r.state, ""))
        table.add_row(Text(safe(_name(r))), state, *(str(value) for value in (*numbers, *last)))
    more = len(requests) - limit
    return Group(table, Text(f"... and {more} more", style="dim")) if more > 0 else table


def _name(request: RequestView) -> str:
    return f"{request.request_id}#{request.index}" if request.index else request.request_id


def reasons(waiting: tuple[Explanation, ...]) -> Text:
    """Why each of these requests waits, in the scheduler's words."""
    text = Text()
    for found in waiting:
        text.append(f"\n{safe(_name(found.request))}", style="yellow")
        for line in found.text.splitlines()[:_SENTENCES]:
            text.append(f"\n  {safe(line)}")
    return text


@dataclass(frozen=True)
class Picture:
    """What one frame shows. waiting: explanations of requests without a row."""

    title: Text
    stats: PoolStats
    pool: PoolMap
    rates: Rates | None
    waiting: tuple[Explanation, ...] = ()


def frame(picture: Picture, width: int, height: int) -> RenderableType:
    """The whole picture, fit for a terminal of width x height cells."""
    stats, pool = picture.stats, picture.pool
    map_rows = max(2, min(12, height - 22))
    used_rows = min(map_rows, -(-len(pool.state) // width))
    room = max(3, height - 19 - used_rows - len(picture.waiting) * (_SENTENCES + 1))
    parts: list[RenderableType] = [
        picture.title,
        pool_bar(stats, width),
        block_map(pool, width, map_rows),
        facts(stats, picture.rates),
        Text(),
    ]
    parts.append(request_table(stats.requests, room) if stats.requests else Text("no requests", style="dim"))
    if picture.waiting:
        parts.append(reasons(picture.waiting))
    return Group(*parts)


def legend() -> Text:
    """What each letter of the map means."""
    text = Text()
    for look in reversed(_BY_KIND):
        text.append(f"{look.letter} ", style=look.style).append(f"{look.name}  ")
    return text
