"""Draws one fork, step by step, from the real scheduler core: `python -m tools.fork_walk [--write]`.

Owns the little story and its drawing; the blocks, tables and copies are the core's own. Invariant: the
pictures are a pure function of the core; without --write they are compared with those in docs/pictures, and
any difference is an error.
"""

import argparse
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from scheduler_svc.core.plan import Capacity, Epoch, NewRequest, SchedulerConfig, SeqId, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WORDS = (
    "The", "keeper", "of", "the", "lighthouse", "said", "fog", "is", "coming", "wait", "for", "calm", "seas",
    "tonight",
)  # fmt: skip
PROMPT = [0, 1, 2, 3, 4, 5]
OUTPUTS = ([6, 7, 8], [9, 10, 11], [12, 13])
"""What each branch samples; the last one ends with its second token."""
NUM_BLOCKS, BLOCK_SIZE = 8, 4
NAMES = ("branch 0", "branch 1", "branch 2")
COLOURS = ("#0072b2", "#d55e00", "#009e73")
CELL, ROW, LEFT, POOL = 66, 64, 20, 620
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.dim{fill:#656d76}.small{font-size:11px}
rect.block{fill:#fff;stroke:#8c959f}rect.active{fill:#ddf4ff;stroke:#0969da}
rect.evictable{fill:#fff8c5;stroke:#9a6700;stroke-dasharray:4 3}path{fill:none;stroke-width:2}
path.copy{stroke:#8250df;stroke-dasharray:6 4;marker-end:url(#tip)}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#8d96a0}rect.page{fill:#0d1117}
rect.block{fill:#161b22;stroke:#6e7681}rect.active{fill:#0c2d4a;stroke:#58a6ff}rect.evictable{fill:#3b2e06;stroke:#d29922}}"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A moment: the words above it, every branch's table, every block, and the copies of the plan.

    tables: [(blocks, tokens in the pool)] by branch, empty for one that has ended. blocks: [(state, refs,
    token ids)] by block.
    """

    title: str
    tables: list[tuple[list[int], int]]
    blocks: list[tuple[str, int, list[int]]]
    copies: list[tuple[int, int]]


class Story:
    """The core, a worker that answers by script, and what each block holds."""

    def __init__(self) -> None:
        self.core = Scheduler(SchedulerConfig(max_num_seqs=4, depth=1))
        self.core.worker_ready(Capacity(Epoch(1), "story", NUM_BLOCKS, BLOCK_SIZE, 64, 4, 64))
        stop = frozenset([OUTPUTS[2][-1]])
        request = NewRequest(SeqId(0), np.array(PROMPT, np.int32), max_tokens=4, stop_token_ids=stop, n=3)
        refusal = self.core.add(request, 0.0)
        assert refusal is None, refusal
        self.given = [0, 0, 0]
        self.content: dict[int, dict[int, int]] = {block: {} for block in range(NUM_BLOCKS)}
        self.last: dict[int, int] = {}
        self.rows: dict[int, int] = {}

    def step(self) -> StepPlan:
        """The next plan, with its effect on the pool."""
        plan = self.core.schedule(0.0)
        assert plan is not None
        self.rows |= {setup.row: setup.seq_id for setup in plan.setups}
        for source, target in plan.copy_pairs.tolist():
            self.content[target] = dict(self.content[source])
        owners = np.repeat(plan.rows, plan.query_lens).tolist()
        for row, token, slot in zip(owners, plan.input_ids.tolist(), plan.slot_mapping.tolist(), strict=True):
            block, offset = divmod(slot, BLOCK_SIZE)
            known = token if token >= 0 else self.last[row]
            held = self.content[block]
            self.content[block] = {at: word for at, word in held.items() if at < offset} | {offset: known}
        return plan

    def answer(self, plan: StepPlan) -> None:
        tokens = []
        for row in plan.sample_rows.tolist():
            branch = self.rows[row]
            self.last[row] = OUTPUTS[branch][self.given[branch]]
            self.given[branch] += 1
            tokens.append(self.last[row])
        self.core.apply(StepResult(plan.step_id, np.array(tokens, np.int32)), 0.0)

    def scene(self, title: str, copies: list[tuple[int, int]]) -> Scene:
        pool = self.core.pool_map()
        states = ("free", "evictable", "active")
        views = {view.seq_id: view for view in self.core.sequences()}
        tables = []
        for branch in range(len(NAMES)):
            entries = self.core.sequence_blocks(SeqId(branch))
            tables.append(([block for block, *_ in entries], views[SeqId(branch)].computed if entries else 0))
        blocks = []
        for block in range(NUM_BLOCKS):
            held = self.content[block]
            tokens = [held[at] for at in range(int(pool.fill[block]))]
            blocks.append((states[int(pool.state[block])], int(pool.ref_count[block]), tokens))
        return Scene(title, tables, blocks, copies)


def scenes() -> dict[str, Scene]:
    story = Story()
    found = {
        "fork-1-before": story.scene("Before: one request of three branches waits; the pool is empty", [])
    }
    plan = story.step()
    found["fork-2-shared"] = story.scene(
        "The plan of the final chunk: computed once, three tables, no copy", []
    )
    story.answer(plan)
    plan = story.step()
    copies = [(source, target) for source, target in plan.copy_pairs.tolist()]
    found["fork-3-copied"] = story.scene(
        "The first write: two copies, the last owner writes in place", copies
    )
    story.answer(plan)
    plan = story.step()
    story.answer(plan)
    found["fork-4-apart"] = story.scene(
        "A step later: branch 2 has ended, its own tail can still be found", []
    )
    return found


def draw(scene: Scene) -> str:
    parts = [f'<text x="{LEFT}" y="26" font-weight="600">{escape(scene.title)}</text>']
    where = {block: (POOL, 62 + 54 * block) for block in range(NUM_BLOCKS)}
    parts += [line for branch in range(len(NAMES)) for line in _table(scene, branch, where)]
    parts += [line for block in range(NUM_BLOCKS) for line in _block(scene, block, where[block])]
    for number, (source, target) in enumerate(scene.copies):
        (x, top), (_, bottom) = where[source], where[target]
        x, bend = x + BLOCK_SIZE * CELL, 40 + 22 * number
        parts.append(
            f'<path class="copy" d="M{x} {top + 17}C{x + bend} {top + 17} {x + bend} {bottom + 17} {x + 4} '
            f'{bottom + 17}"/>'
        )
    width, height = POOL + BLOCK_SIZE * CELL + 120, 62 + 54 * NUM_BLOCKS - 8
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#8250df;stroke:none"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(scene.title)}"><style>{STYLE}</style><defs>{tip}</defs>'
        f'<rect class="page" width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _table(scene: Scene, branch: int, where: dict[int, tuple[int, int]]) -> list[str]:
    """A branch's logical blocks, and a line from each to the physical one."""
    blocks, tokens = scene.tables[branch]
    top = 78 + branch * (ROW + 60)
    held = f"{tokens} tokens in {len(blocks)} blocks" if blocks else "holds nothing"
    parts = [
        f'<text x="{LEFT}" y="{top - 8}" style="fill:{COLOURS[branch]}" font-weight="600">'
        f"{NAMES[branch]}</text>",
        f'<text class="dim small" x="{LEFT + 76}" y="{top - 8}">{held}</text>',
    ]
    for offset, block in enumerate(blocks):
        y = top + 36 * offset
        x, at = LEFT + 150, where[block][1] + 17
        parts += [
            f'<rect class="block" x="{LEFT}" y="{y}" width="150" height="28" rx="4"/>',
            f'<text x="{LEFT + 10}" y="{y + 19}">logical {offset} \N{RIGHTWARDS ARROW} block {block}</text>',
            f'<path style="stroke:{COLOURS[branch]}" d="M{x} {y + 14}C{x + 190} {y + 14} {POOL - 190} '
            f'{at + 3 * branch - 3} {POOL - 4} {at + 3 * branch - 3}"/>',
        ]
    return parts


def _block(scene: Scene, block: int, at: tuple[int, int]) -> list[str]:
    """A physical block with its tokens and reference count."""
    state, refs, tokens = scene.blocks[block]
    (x, y), width = at, BLOCK_SIZE * CELL
    parts = [f'<rect class="block {state}" x="{x}" y="{y}" width="{width}" height="34" rx="4"/>']
    parts += [
        f'<text class="small" x="{x + 6 + CELL * offset}" y="{y + 22}">{escape(WORDS[token])}</text>'
        for offset, token in enumerate(tokens)
    ]
    note = f"block {block}, {f'{refs} refs' if refs > 1 else state}"
    return [*parts, f'<text class="dim small" x="{x}" y="{y - 4}">{note}</text>']


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the pictures in docs/pictures")
    write, stale = parser.parse_args().write, []
    for name, scene in scenes().items():
        path, picture = PICTURES / f"{name}.svg", draw(scene)
        if write:
            path.write_text(picture, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != picture:
            stale.append(path.name)
    if stale:
        print(f"stale: {', '.join(stale)}; python -m tools.fork_walk --write", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
