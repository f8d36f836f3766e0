"""The tables of docs/models.md, from the registry and the tests' lists: `python -m tools.model_docs`.

Owns their layout; knows no text around them. Invariant: a table that is up to date is left as it is.
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gpu_worker.models import cpu_decoder, fused_decoder
from gpu_worker.models.registry import ARCHITECTURES, Architecture, parse_config
from tests.fixtures.hf_families import FAMILIES, OTHERS, SIZES
from tools.doc_tables import renewed, run

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
CONFIGS = ROOT / "tests" / "data" / "configs"
OWN = (
    "| architecture | beyond Llama | compiled on a CPU | fused on CUDA | tiny models tested "
    "| real configs loaded |"
)
THEIRS = "| architecture | tiny models tested |"


def architecture_of(name: str) -> str:
    """Of a key of FAMILIES or OTHERS."""
    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name.split(" ")[0]])


def features(family: Architecture) -> str:
    """What the registry says of a family, in words."""
    windows = {"none": "", "all": "windows", "late": "windows in late layers"}
    said = [
        {"before": "", "after": "norms after each block", "around": "norms around each block"}[family.norms],
        "norms added to 1" if family.norm_offset else "",
        {"none": "", "head": "q, k norm per head", "width": "q, k norm over all heads"}[family.qk_norm],
        "biases of q, k, v" if family.qkv_bias else "",
        "qkv and gate-up stored in one" if family.fused else "",
        windows[family.window]
        if isinstance(family.window, str)
        else f"windows, every {family.window}. layer whole",
        "a rope of their own for layers with a window" if family.local_rope else "",
        "soft caps" if "attn_logit_softcapping" in family.defaults else "",
        "scaled embedding" if family.scaled_embedding else "",
        "experts" if family.experts != "none" else "",
    ]
    return ", ".join(part for part in said if part) or "-"


def own_rows() -> list[str]:
    """One row an architecture of the decoder."""
    configs: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.glob("*.json")):
        configs.setdefault(json.loads(path.read_text(encoding="utf-8"))["architectures"][0], []).append(
            path.stem
        )
    rows = []
    for architecture, family in ARCHITECTURES.items():
        variants = [name for name in FAMILIES if architecture_of(name) == architecture]
        lacks = [_lacking(name, architecture) for name in variants]
        runs = [_in_words(column) for column in zip(*lacks, strict=True)]
        real = ", ".join(configs.get(architecture, [])) or "-"
        cells = [architecture, features(family), *runs, ", ".join(variants), real]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _in_words(lacking: tuple[str, ...]) -> str:
    """What the variants of an architecture lack; the first is the plain one."""
    if not any(lacking):
        return "yes"
    return f"no: {max(lacking, key=len)}" if lacking[0] else f"yes, but not {max(lacking, key=len)}"


def _lacking(name: str, architecture: str) -> tuple[str, str]:
    """What the compiled and the fused layers lack for a tiny model."""
    given: dict[str, Any] = {**SIZES, **FAMILIES[name]}
    config = AutoConfig.for_model(name.split(" ")[0], **given).to_dict() | {"architectures": [architecture]}
    parsed = parse_config(config)
    return cpu_decoder.obstacle(parsed), fused_decoder.obstacle(parsed)


def other_rows() -> list[str]:
    """One row an architecture that transformers runs in the tests."""
    found: dict[str, list[str]] = {}
    for name in OTHERS:
        found.setdefault(architecture_of(name), []).append(name)
    return [f"| {architecture} | {', '.join(names)} |" for architecture, names in sorted(found.items())]


def page(text: str) -> str:
    """The page with both tables as they ought to be."""
    return renewed(text, {OWN: own_rows(), THEIRS: other_rows()})


if __name__ == "__main__":
    sys.exit(run(PAGE, page, "tools.model_docs"))
