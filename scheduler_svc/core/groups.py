"""Requests with several branches: one prompt, computed once, that n sequences go on from.

Owns who stands for whom until the fork; does not know rows or blocks. Invariant: until the prompt is computed
one branch, the leader, waits and runs for all, and the others, its followers, hold nothing; after the fork
every branch is a sequence like any other.
"""

from scheduler_svc.core.plan import Int32Array, NewRequest
from scheduler_svc.core.sequence import SeqState, Sequence


def new_group(request: NewRequest, arrival: int, now: float, tokens: Int32Array, rank: float) -> Sequence:
    """The leader of a new request's n branches; branch i has arrival number arrival + i."""
    leader, *followers = (
        Sequence(request, arrival + branch, now, tokens, rank=rank, branch=branch)
        for branch in range(request.n)
    )
    _lead(leader, followers)
    return leader


def leave(seq: Sequence) -> Sequence | None:
    """Takes a sequence out of its group; the branch that leads in its place, if it led one."""
    if seq.leader is not None:
        seq.leader.followers.remove(seq)
        seq.leader = None
    if not seq.followers:
        return None
    heir, *rest = seq.followers
    seq.followers = []
    _inherit(heir, seq)
    heir.leader, heir.state = None, SeqState.PREEMPTED if seq.admissions else SeqState.WAITING
    _lead(heir, rest)
    return heir


def disband(leader: Sequence) -> list[Sequence]:
    """The fork: the followers, each with what the leader has reached, each on its own from now on."""
    followers, leader.followers = leader.followers, []
    for seq in followers:
        _inherit(seq, leader)
        seq.leader, seq.state = None, SeqState.RUNNING
    return followers


def _lead(leader: Sequence, followers: list[Sequence]) -> None:
    leader.followers = followers
    for seq in followers:
        seq.leader = leader


def _inherit(seq: Sequence, leader: Sequence) -> None:
    seq.tokens, seq.keys, seq.keys_of = leader.tokens, leader.keys, leader.keys_of
    seq.admissions, seq.cached_prompt_tokens = leader.admissions, leader.cached_prompt_tokens
