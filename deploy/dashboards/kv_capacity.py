"""The flagship: is the KV pool large enough, and what is it used for.

Owns its panels; knows no other dashboard. Invariant: each panel's description names its metrics.
"""

from deploy.dashboards.panel import Dashboard, Panel, quantiles, rate

_AVAILABLE = 'sum(octavo_kv_blocks{state=~"free|evictable"})'
_MEAN_TOKENS = (
    "((sum(increase(octavo_prompt_tokens_total[1d])) + sum(increase(octavo_generated_tokens_total[1d]))) "
    "/ sum(increase(octavo_requests_total[1d])))"
)
_FIT = f"floor({_AVAILABLE} * max(octavo_kv_block_size_tokens) / {_MEAN_TOKENS})"
_HIT_RATIO = f"{rate('octavo_prefix_hit_tokens_total')} / {rate('octavo_prefix_lookup_tokens_total')}"
_SAVED = 'sum(octavo_kv_block_refs) - sum(octavo_kv_blocks{state="active"})'


def _stat(title: str, unit: str, description: str, legend: str, query: str) -> Panel:
    return Panel(title, unit, description, ((legend, query),), "stat", 4)


DASHBOARD = Dashboard(
    "octavo-kv-pool",
    "Octavo: KV capacity",
    (
        _stat(
            "Pool in use", "percentunit", "octavo_kv_usage_ratio: active blocks as a part of the capacity.",
            "in use", "max(octavo_kv_usage_ratio)",
        ),
        _stat(
            "Still fit", "short",
            "Sequences of the mean length of the last day (octavo_prompt_tokens_total and "
            "octavo_generated_tokens_total over octavo_requests_total) that the free and evictable "
            "octavo_kv_blocks of octavo_kv_block_size_tokens could hold.",
            "sequences", _FIT,
        ),
        _stat(
            "Prefix hits", "percentunit",
            "octavo_prefix_hit_tokens_total of octavo_prefix_lookup_tokens_total.",
            "of looked-up tokens", _HIT_RATIO,
        ),
        _stat(
            "Saved by sharing", "short",
            "octavo_kv_block_refs less the active octavo_kv_blocks: blocks that would be needed without it.",
            "blocks", _SAVED,
        ),
        _stat(
            "Block", "bytes", "octavo_kv_bytes_per_block; it holds octavo_kv_block_size_tokens tokens.",
            "bytes", "max(octavo_kv_bytes_per_block)",
        ),
        _stat(
            "Broken invariants", "short",
            "octavo_invariant_violations_total and octavo_kv_blocks_leaked: anything but 0 is a bug.",
            "found", "sum(octavo_invariant_violations_total) + sum(octavo_kv_blocks_leaked)",
        ),
        Panel(
            "KV blocks by state", "short",
            "octavo_kv_blocks, stacked, against octavo_kv_blocks_capacity: the states sum to the capacity.",
            (
                ("{{state}}", "sum by (state) (octavo_kv_blocks)"),
                ("capacity", "sum(octavo_kv_blocks_capacity)"),
            ),
            width=12, stacked=True, lines=("capacity",),
        ),
        Panel(
            "Sharing", "short",
            "octavo_kv_blocks_shared, and octavo_kv_block_refs less active octavo_kv_blocks: what it saves.",
            (("shared", "sum(octavo_kv_blocks_shared)"), ("saved", _SAVED)),
            width=12,
        ),
        Panel(
            "Slots of held blocks", "short",
            "octavo_kv_slots_allocated and octavo_kv_slots_filled: the difference is fragmentation.",
            (("allocated", "sum(octavo_kv_slots_allocated)"), ("filled", "sum(octavo_kv_slots_filled)")),
        ),
        Panel(
            "Blocks a second", "ops", "octavo_kv_blocks_allocated_total, _freed_total and _evicted_total.",
            tuple(
                (name, rate(f"octavo_kv_blocks_{name}_total")) for name in ("allocated", "freed", "evicted")
            ),
        ),
        Panel(
            "Idle before eviction", "s",
            "octavo_kv_block_idle_seconds: how long nobody held a block that was evicted. Short times mean "
            "that "
            "the pool is too small for its prefixes.",
            (("{{le}}", rate("octavo_kv_block_idle_seconds_bucket", by="le")),),
            "heatmap",
        ),
        Panel(
            "Prefix tokens", "short",
            "octavo_prefix_lookup_tokens_total, octavo_prefix_hit_tokens_total by tier, and the part of "
            "the hits "
            "that was copied (octavo_prefix_copied_tokens_total); octavo_prefix_alignment_lost_tokens_total: "
            "cached too, but not usable. A second.",
            (
                ("looked up", rate("octavo_prefix_lookup_tokens_total")),
                ("hit: {{tier}}", rate("octavo_prefix_hit_tokens_total", by="tier")),
                ("copied", rate("octavo_prefix_copied_tokens_total")),
                ("lost to alignment", rate("octavo_prefix_alignment_lost_tokens_total")),
            ),
        ),
        Panel(
            "Prefix index", "short",
            "octavo_prefix_index_entries, and in the last hour octavo_prefix_collisions_total and "
            "octavo_prefix_flushed_blocks_total.",
            (
                ("entries", "sum(octavo_prefix_index_entries)"),
                ("collisions", "sum(increase(octavo_prefix_collisions_total[1h]))"),
                ("flushed", "sum(increase(octavo_prefix_flushed_blocks_total[1h]))"),
            ),
        ),
        Panel(
            "Forks and copies", "ops",
            "octavo_kv_forks_total, octavo_kv_blocks_saved_by_forks_total, and octavo_kv_cow_copies_total by "
            "reason.",
            (
                ("forks", rate("octavo_kv_forks_total")),
                ("blocks saved", rate("octavo_kv_blocks_saved_by_forks_total")),
                ("copies: {{reason}}", rate("octavo_kv_cow_copies_total", by="reason")),
            ),
        ),
        Panel(
            "Block lifetime", "s",
            "Quantiles of octavo_kv_block_lifetime_seconds: from handing a block out to giving up its "
            "content.",
            quantiles("octavo_kv_block_lifetime_seconds"),
        ),
        Panel(
            "Reuse gap", "s",
            "Quantiles of octavo_kv_block_reuse_gap_seconds: how long nobody held a block that was hit.",
            quantiles("octavo_kv_block_reuse_gap_seconds"),
        ),
        Panel(
            "Preemptions", "ops", "octavo_preemptions_total by mode and reason.",
            (("{{mode}}: {{reason}}", rate("octavo_preemptions_total", by="mode, reason")),),
        ),
        Panel(
            "Work thrown away", "short",
            "octavo_preempted_tokens_total by mode, a second; and, when sequences came back, "
            "octavo_prefix_recompute_lookup_tokens_total and octavo_prefix_recompute_hit_tokens_total.",
            (
                ("thrown away: {{mode}}", rate("octavo_preempted_tokens_total", by="mode")),
                ("looked up again", rate("octavo_prefix_recompute_lookup_tokens_total")),
                ("found again", rate("octavo_prefix_recompute_hit_tokens_total")),
            ),
        ),
        Panel(
            "Time preempted", "s",
            "Quantiles of octavo_preempted_seconds: how long a preempted sequence waited to come back.",
            quantiles("octavo_preempted_seconds"),
        ),
        Panel(
            "Host tier", "short", "octavo_kv_host_blocks by state against octavo_kv_host_blocks_capacity.",
            (
                ("{{state}}", "sum by (state) (octavo_kv_host_blocks)"),
                ("capacity", "sum(octavo_kv_host_blocks_capacity)"),
            ),
        ),
        Panel(
            "Swap traffic", "Bps", "octavo_kv_swap_bytes_total by direction.",
            (("{{direction}}", rate("octavo_kv_swap_bytes_total", by="direction")),),
        ),
        Panel(
            "Blocks swapped", "ops", "octavo_kv_block_moves_total by direction.",
            (("{{direction}}", rate("octavo_kv_block_moves_total", by="direction")),),
        ),
        Panel(
            "Cost of preemptions", "short",
            "Seconds a second: octavo_preemption_cost_seconds_total and octavo_preemption_estimated_seconds_"
            "total, by mode.",
            (
                ("cost: {{mode}}", rate("octavo_preemption_cost_seconds_total", by="mode")),
                ("estimate: {{mode}}", rate("octavo_preemption_estimated_seconds_total", by="mode")),
            ),
        ),
        Panel(
            "Error of the estimate", "percentunit",
            "Quantiles of octavo_preemption_estimate_error_ratio: how far it was from the cost.",
            quantiles("octavo_preemption_estimate_error_ratio"),
        ),
        Panel(
            "The pool", "short", "octavo_kv_config_info: how the pool is built, 1 for each kind.",
            (("{{model}}, {{kv_dtype}}", "max by (model, kv_dtype, layout) (octavo_kv_config_info)"),),
        ),
    ),
)  # fmt: skip
