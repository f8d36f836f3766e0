"""What services would say of their command lines, before any of them starts.

Owns the processes that read settings and do nothing else; knows no setting. Invariant: none of them is left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from octavo_client.supervisor.child import ChildSpec
from octavo_client.supervisor.lines import REFUSED, refusal


async def refusal_before_start(specs: Sequence[ChildSpec]) -> str:
    """What the first of the children refuses of its command line, in one line; empty when none does.

    Where settings cannot be read at all, the child's own start says why.
    """
    for said in await asyncio.gather(*(_refusal(spec) for spec in specs if spec.check)):
        if said:
            return said
    return ""


async def _refusal(spec: ChildSpec) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *spec.check,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **spec.env},
        )
    except OSError:
        return ""
    try:
        _, written = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = written.decode("utf-8", "replace").strip().splitlines()
    return refusal(lines[-1]) if process.returncode == REFUSED and lines else ""
