"""The scheduling core: who runs in each step, in which blocks, and what the worker's answers mean.

Owns every decision about KV blocks; does no I/O and knows no clock, no randomness and no other room.
Invariant: the same calls give the same plans.

To read it: `plan` (what goes in and out), `scheduler` (the order of decisions), `prefill` (fairness,
admission), `preemption`, `results` (answers), `lifecycle` and `session` (who lives how long), `rows` (the
running sequences as arrays), `batch_builder` and `in_flight` (a plan, and what it meant), `block_manager`
over `block_pool` and `prefix_index` (blocks), `linked_lists`, `block_hash`, `waiting_queue` (their tools),
`invariants`, `inspection`, `stats`, `ages` (looking on).
"""
