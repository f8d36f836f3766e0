# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-any-return"
"""top_k, top_p and min_p without a sort: each keeps the logits from a threshold on, so find the threshold.

Owns the search, called by the draw kernel in one program a row; knows no random numbers. Invariant: the kept
tokens are those of the reference in float64 (gpu_worker.sampler), those tied with the last one included.

The common case looks at the few logits above a level that a few peaks of spans prove low enough. Where more
than ROOM are above it, the row is read again and again, the threshold between quarters of what is left.
"""

import triton
import triton.language as tl

from paged_kernels.triton_impl.likelihood import below, exp2, key_of, lowest_key, value_of

SPAN = 256
"""Logits that share one peak in `spans`."""
ROOM = 4096
"""Candidates that are searched in registers."""
SPANS_AT_ONCE = 16
"""Spans that are looked through at once for candidates."""
_NUCLEUS = tl.constexpr(32)  # the first guess at the tokens of a nucleus
_HOPELESS = tl.constexpr(2.0)  # give up if twice as many as are needed at the least were too many


# fmt: off
@triton.jit
def is_filtered(top_p, min_p, top_k, vocab):
    return (top_p < 1.0) | (min_p > 0.0) | ((top_k > 0) & (top_k < vocab))


@triton.jit
def _collect(
    found_ids, lines, logits, spans, level, vocab, count,
    block_s: tl.constexpr, span: tl.constexpr, at_once: tl.constexpr, room: tl.constexpr,
):
    """Writes the ids of logits >= level, in order, as far as there is room; returns how many there are, or
    more than room. spans [count]: the peak of each span; lines: scratch as long.
    """
    numbers = tl.arange(0, block_s)
    peaks = tl.load(spans + numbers, mask=numbers < count, other=float("-inf"))
    chosen = ((peaks >= level) & (peaks > float("-inf"))).to(tl.int32)
    tl.debug_barrier()
    tl.store(lines + tl.cumsum(chosen, 0) - 1, numbers, mask=chosen > 0)
    until = tl.sum(chosen, 0)
    tl.debug_barrier()
    start, found = 0, 0
    while (start < until) & (found <= room):
        which = start + tl.arange(0, at_once)
        line = tl.load(lines + which, mask=which < until, other=0)
        ids = line[:, None] * span + tl.arange(0, span)[None, :]
        mask = (which < until)[:, None] & (ids < vocab)
        values = tl.load(logits + ids, mask=mask, other=float("-inf")).to(tl.float32)
        hit = ((values >= level) & (values > float("-inf"))).to(tl.int32)
        in_line = tl.sum(hit, 1)
        before = found + tl.cumsum(in_line, 0) - in_line
        at = before[:, None] + tl.cumsum(hit, 1) - 1
        tl.store(found_ids + at, ids, mask=(hit > 0) & (at < room))
        found += tl.sum(in_line, 0)
        start += at_once
    tl.debug_barrier()
    return found


@triton.jit
def _candidates(found_ids, logits, found, peak, slope, shift: tl.constexpr, room: tl.constexpr):
    """(ids, keys, distances from the peak in powers of two, likelihoods) of those found, 0 beyond them."""
    numbers = tl.arange(0, room)
    ids = tl.load(found_ids + numbers, mask=numbers < found, other=0)
    values = tl.load(logits + ids, mask=numbers < found, other=float("-inf")).to(tl.float32)
    x = below(values, peak, shift) * slope
    return ids, key_of(values, shift), x, exp2(x)


@triton.jit
def _lowest_kept(keys, amounts, low, high, limit):
    """The lowest key t in (low, high] above which the amounts add up to less than limit; high is such."""
    while low + 1 < high:
        middle = (low & high) + ((low ^ high) >> 1)
        kept = tl.sum(tl.where(keys > middle, amounts, 0), 0) < limit
        high = tl.where(kept, middle, high)
        low = tl.where(kept, low, middle)
    return high


@triton.jit
def _level(spans, count, nth, peak, block_s: tl.constexpr, shift: tl.constexpr):
    """The nth greatest peak of the spans, nth in 1..count: as many logits, at least, are no lower."""
    numbers = tl.arange(0, block_s)
    keys = key_of(tl.load(spans + numbers, mask=numbers < count, other=float("-inf")), shift)
    once = tl.full([block_s], 1, tl.int32)
    low = tl.min(tl.where(numbers < count, keys, 2147483647), 0) - 1
    return value_of(_lowest_kept(keys, once, low, key_of(peak, shift), nth), shift)


@triton.jit
def _reach(peak, slope, total, top_p, min_p, top_k, vocab):
    """A logit that no kept token is below: -inf where only ranks could tell.

    All tokens that a nucleus leaves out have 1 - top_p of the mass together, so one alone of vocab equal ones
    has at least its share: what is below that share is never kept.
    """
    x = tl.where(min_p > 0, tl.log2(tl.maximum(min_p, 1e-300)), float("-inf"))
    if top_p < 1.0:
        share = tl.log2((1.0 - top_p) * total / vocab)
        x = tl.where(top_k > 0, float("-inf"), tl.maximum(x, share))
    return (peak.to(tl.float64) + (x - 0.01) / slope).to(tl.float32)


@triton.jit
def _sums_above(
    logits, vocab, first, second, third, peak, slope, kind: tl.constexpr, shift: tl.constexpr,
):
    """Over the whole row, of the tokens above each of three keys: their number for kind int32, their mass in
    float32 or float64."""
    ids = tl.arange(0, 2)[:, None] * 2048 + tl.arange(0, 2048)[None, :]
    one, two, three = tl.zeros([2048], kind), tl.zeros([2048], kind), tl.zeros([2048], kind)
    for start in range(0, vocab, 4096):
        at = start + ids
        values = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        keys = key_of(values, shift)
        if kind == tl.int32:
            amounts = tl.full([2, 2048], 1, tl.int32)
        elif kind == tl.float32:
            amounts = tl.exp2((values - peak) * slope.to(tl.float32))
        else:
            amounts = exp2(below(values, peak, shift) * slope)
        one += tl.sum(tl.where(keys > first, amounts, 0), 0)
        two += tl.sum(tl.where(keys > second, amounts, 0), 0)
        three += tl.sum(tl.where(keys > third, amounts, 0), 0)
    return tl.sum(one, 0).to(tl.float64), tl.sum(two, 0).to(tl.float64), tl.sum(three, 0).to(tl.float64)


@triton.jit
def _lowest_kept_of_all(
    logits, vocab, low, high, guess, limit, peak, slope, kind: tl.constexpr, shift: tl.constexpr,
):
    """_lowest_kept over the whole row, and the sum above it. Tries guess and the two keys below it first."""
    held, guessed = limit * 0.0, 1
    while low + 1 < high:
        width = high.to(tl.int64) - low.to(tl.int64)
        first = tl.where(guessed > 0, guess - 2, low + tl.maximum(width // 4, 1).to(tl.int32))
        second = tl.where(guessed > 0, guess - 1, low + (width // 2).to(tl.int32))
        third = tl.where(guessed > 0, guess, low + (width - tl.maximum(width // 4, 1)).to(tl.int32))
        first = tl.minimum(tl.maximum(first, low + 1), high - 1)
        second = tl.minimum(tl.maximum(second, low + 1), high - 1)
        third = tl.minimum(tl.maximum(third, low + 1), high - 1)
        one, two, three = _sums_above(logits, vocab, first, second, third, peak, slope, kind, shift)
        guessed = 0
        low = tl.where(one < limit, low, tl.where(two < limit, first, tl.where(three < limit, second, third)))
        high = tl.where(
            one < limit, first, tl.where(two < limit, second, tl.where(three < limit, third, high))
        )
        held = tl.where(one < limit, one, tl.where(two < limit, two, tl.where(three < limit, three, held)))
    return high, held


@triton.jit
def _threshold_of_all(logits, vocab, peak, slope, total, top_p, top_k, reach, shift: tl.constexpr):
    """The lowest key that top_k and top_p keep, by reading the whole row some ten times."""
    low, high = key_of(reach, shift) - 1, key_of(peak, shift)
    last = low + 1
    if top_k > 0:
        last, above = _lowest_kept_of_all(
            logits, vocab, low, high, high, top_k.to(tl.float64), peak, slope, tl.int32, shift
        )
        if top_p < 1.0:
            total, _, _ = _sums_above(logits, vocab, last, last, last, peak, slope, tl.float64, shift)
            tied = exp2(below(value_of(last, shift), peak, shift) * slope)
            total += (top_k.to(tl.float64) - above) * tied
        low = last - 1
    if top_p < 1.0:
        guess, _ = _lowest_kept_of_all(
            logits, vocab, low, high, high, top_p * total, peak, slope, tl.float32, shift
        )
        nucleus, _ = _lowest_kept_of_all(
            logits, vocab, low, high, guess, top_p * total, peak, slope, tl.float64, shift
        )
        last = tl.maximum(last, nucleus)
    return last


@triton.jit
def sum_kept(sums, logits, vocab, chunks, last, least, peak, slope, chunk: tl.constexpr, shift: tl.constexpr):
    """Replaces the sums of the chunks by the mass of their kept tokens."""
    for start in range(0, chunks, 2):
        numbers = start + tl.arange(0, 2)
        ids = numbers[:, None] * chunk + tl.arange(0, chunk)[None, :]
        values = tl.load(logits + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        x = below(values, peak, shift) * slope
        kept = (key_of(values, shift) >= last) & (x >= least)
        tl.store(sums + numbers, tl.sum(tl.where(kept, exp2(x), 0.0), 1), mask=numbers < chunks)
    tl.debug_barrier()


@triton.jit
def draw_among_few(
    found_ids, lines, logits, spans, peak, slope, total, draw, top_p, min_p, top_k, vocab,
    block_s: tl.constexpr, span: tl.constexpr, at_once: tl.constexpr, room: tl.constexpr,
    shift: tl.constexpr,
):
    """(token, lowest kept key, least distance) of a filtered row; token -1 where the kept ones are too many
    to be held at once: the caller draws among those that reach both bounds.
    """
    top_k = tl.where(top_k < vocab, top_k, 0)
    count = tl.cdiv(vocab, span)
    reach = _reach(peak, slope, total, top_p, min_p, top_k, vocab)
    least = tl.where(min_p > 0, tl.log2(tl.maximum(min_p, 1e-300)), float("-inf"))
    by_rank = (top_k > 0) | (top_p < 1.0)
    level, enough, found = reach, 0, 0
    attempt = tl.where(top_k > count, 2, 0)
    while (attempt < 4) & (enough == 0):
        if by_rank:
            nth = tl.where(attempt == 0, tl.where(top_k > 0, top_k, _NUCLEUS), count)
            nth = tl.where(attempt == 1, count * 3 // 8, tl.where(attempt == 2, count * 7 // 8, nth))
            nth = tl.minimum(tl.maximum(nth, 1), count)
            level = tl.maximum(_level(spans, count, nth, peak, block_s, shift), reach)
        found = _collect(
            found_ids, lines, logits, spans, level, vocab, count, block_s, span, at_once, room
        )
        attempt += 1
        if found > room:
            attempt = 4
        elif (level <= reach) | ((top_k > 0) & (found >= top_k)):
            enough = 1
        elif (top_k == 0) & (top_p < 1.0):
            _, _, _, likely = _candidates(found_ids, logits, found, peak, slope, shift, room)
            mass, wanted = tl.sum(likely, 0), top_p * total
            enough = (mass >= wanted).to(tl.int32)
            attempt = tl.where(found * wanted * _HOPELESS > mass * room, 4, attempt)
    token, last = -1, lowest_key(shift)
    if enough > 0:
        ids, keys, x, mass = _candidates(found_ids, logits, found, peak, slope, shift, room)
        lowest, high = key_of(level, shift) - 1, key_of(peak, shift)
        last = lowest + 1
        if top_k > 0:
            last = _lowest_kept(keys, tl.full([room], 1, tl.int32), lowest, high, top_k)
            if top_p < 1.0:
                above = tl.sum((keys > last).to(tl.int32), 0)
                tied = tl.max(tl.where(keys == last, mass, 0.0), 0)
                total = tl.sum(tl.where(keys > last, mass, 0.0), 0)
                total += (tl.minimum(top_k, found) - above).to(tl.float64) * tied
        if top_p < 1.0:
            last = tl.maximum(last, _lowest_kept(keys, mass, lowest, high, top_p * total))
        mass = tl.where((keys >= last) & (x >= least), mass, 0.0)
        numbers = tl.arange(0, room)
        passed = tl.sum((tl.cumsum(mass, 0) <= draw * tl.sum(mass, 0)).to(tl.int32), 0)
        at = tl.minimum(passed, tl.max(tl.where(mass > 0, numbers, 0), 0))
        token = tl.sum(tl.where(numbers == at, ids, 0), 0)
    else:
        last = _threshold_of_all(logits, vocab, peak, slope, total, top_p, top_k, reach, shift)
    return token, last, least
# fmt: on
