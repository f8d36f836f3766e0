"""What the harness prints and leaves behind: one table a family, and one JSON object.

Owns the words and the files under build/harness; judges nothing. Invariant: ties are always counted and
shown, also when there are none.
"""

import json
import re
from collections.abc import Sequence

from tests.e2e.processes import REPOSITORY
from tests.harness.service_run import Outcome
from tests.harness.verdict import Verdict

FOLDER = REPOSITORY / "build" / "harness"


def publish(verdict: Verdict, outcomes: Sequence[Outcome]) -> None:
    """Prints the table and the object, and writes the table to build/harness/FAMILY.md."""
    text = table(verdict, outcomes)
    print(text)
    print(as_json(verdict))
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", verdict.family.lower()).strip("-")
    (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


def table(verdict: Verdict, outcomes: Sequence[Outcome]) -> str:
    """Markdown: a row a setting, then the verdict and its ties."""
    lines = [
        f"## {verdict.family}",
        "| setting | requests | tokens | preemptions | blocks swapped in | cached tokens | kills | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        tokens = sum(len(output) for output in one.outputs)
        seconds = f"{one.seconds:.0f}"
        counts = (
            len(one.outputs), tokens, one.preemptions, one.swapped_in, one.cached, one.kills, seconds,
        )  # fmt: skip
        lines.append(f"| {one.setting.name} | {' | '.join(map(str, counts))} |")
    lines += [
        "",
        f"{verdict.tokens} tokens of {verdict.outputs} outputs compared with transformers; "
        f"{verdict.equal_outputs} outputs equal; ties {len(verdict.ties)} (allowed {verdict.allowed_ties}); "
        f"differences {len(verdict.errors)}.",
    ]
    lines += [f"- tie: {tie}" for tie in verdict.ties]
    return "\n".join(lines) + "\n"


def as_json(verdict: Verdict) -> str:
    """One line for programs."""
    return json.dumps(
        {
            "family": verdict.family,
            "tokens": verdict.tokens,
            "outputs": verdict.outputs,
            "equal_outputs": verdict.equal_outputs,
            "ties": len(verdict.ties),
            "differences": len(verdict.errors),
        }
    )
