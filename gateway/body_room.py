"""How much of all clients' bodies is held at once.

Owns the count; knows no request. Invariant: what was taken is given back exactly once, and a small body
always finds room.
"""

from http import HTTPStatus

from gateway.errors import SERVER, ApiError

BODIES = 16
"""Bodies of the largest size that may be held at once."""
SMALL_BYTES = 1 << 16
"""Of each body, so many count for nothing."""


class BodyRoom:
    """limit: bytes of the largest body."""

    def __init__(self, limit: int) -> None:
        self._total = self.left = BODIES * limit

    def grow(self, held: int, size: int) -> int:
        """Takes what a body of `size` bytes needs beyond what it holds; returns what it holds then.

        Raises ApiError (503) when there is no room.
        """
        more = max(0, size - SMALL_BYTES) - held
        if more <= 0:
            return held
        if more > self.left:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the bodies of other requests fill the {self._total} bytes that are held at once",
                kind=SERVER,
                code="bodies_full",
                headers={"retry-after": "1", "connection": "close"},
            )
        self.left -= more
        return held + more

    def give(self, held: int) -> None:
        """Gives back what a body held."""
        self.left += held
