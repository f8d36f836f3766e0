"""The block-size study: its page shows its results, and its parts run."""

import json
import re

import pytest

from benchmarks.block_size import page, traffic
from scheduler_svc.simulate.readers import ReadOptions, read_trace
from scheduler_svc.simulate.trace import Trace
from tests.unit.simulate.traces import AZURE, WEKA

SIZES = (16, 256)


def silent(what: str) -> None:
    """Nobody looks on."""


def results() -> page.Results:
    loaded: page.Results = json.loads(page.RESULTS.read_text())
    return loaded


def azure(count: int = 60) -> Trace:
    return read_trace(AZURE, options=ReadOptions(limit=count))


def test_the_page_shows_the_results() -> None:
    text = page.PAGE.read_text("utf-8")
    shown = set(re.findall(r"<!-- ([a-z-]+) -->\n", text)) - {"end"}
    assert shown == set(page.TABLES)
    assert text == page.page(text, results(), page.gpu_results()), "python -m benchmarks.block_size.page"


def test_the_plots_are_those_of_the_results() -> None:
    named = {name for name, _, _ in page.pictures(results(), page.gpu_results())}
    assert {path.stem for path in page.PICTURES.glob("*.svg")} == named
    assert set(re.findall(r"\(block-size/([a-z-]+)\.svg\)", page.PAGE.read_text("utf-8"))) == named


def test_a_table_of_the_page_is_renewed_and_the_text_around_it_kept() -> None:
    text = "before\n<!-- hash -->\nold\n<!-- end -->\nafter\n"
    renewed = page.page(text, {"hash_one": {"ns_256_tokens": 70.2, "ns_empty": 40.0}}, None)
    assert renewed.startswith("before\n<!-- hash -->\nOne block of 256 token ids: 70 ns")
    assert renewed.endswith("<!-- end -->\nafter\n")
    with pytest.raises(KeyError):
        page.page("<!-- nobody -->\n<!-- end -->", {}, None)


def test_smaller_blocks_waste_less_and_weigh_more() -> None:
    small, large = traffic.fragmentation("azure", azure(), SIZES, silent)
    assert small["waste"] < large["waste"] / 5
    assert small["table_bytes_per_request"] > 8 * large["table_bytes_per_request"]
    assert small["plan_bytes_per_decode_step"] > large["plan_bytes_per_decode_step"]


def test_matches_inside_blocks_make_up_for_large_ones() -> None:
    trace = read_trace(WEKA, options=ReadOptions(limit=20))
    small, large = traffic.hit_rates("weka", trace, (64, 4096), silent)
    assert 0 < large["whole_blocks"] < small["whole_blocks"] < 1
    assert small["whole_blocks"] == small["inside_blocks"] == large["inside_blocks"]


def test_the_baseline_holds_fewer_requests_in_the_same_memory() -> None:
    rows = traffic.baseline(azure(200), (16,), 40_000, (8192,), silent)
    paged, reserved = rows
    assert (paged["block_size"], reserved["block_size"]) == (16, "contiguous")
    assert reserved["running_most"] == 40_000 // 8192
    assert paged["running_most"] > 4 * reserved["running_most"]
    assert reserved["waste"] > 0.5 > paged["waste"]
