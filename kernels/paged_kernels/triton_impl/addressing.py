"""How kernels find a position's block without a division.

Owns that number; knows no kernel. Invariant: exact for every position below 2^31.
"""

from functools import lru_cache


@lru_cache(maxsize=64)
def division_magic(divisor: int) -> tuple[int, int]:
    """(m, s) with n // divisor == n * m >> s for 0 <= n < 2^31, and n * m < 2^63.

    Round-up method of Granlund and Montgomery, "Division by invariant integers using multiplication" (PLDI
    1994).
    """
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift
