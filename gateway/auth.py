"""API keys: who may ask, and the cache namespace that a key stands for.

Owns the keys and their comparison; knows no endpoint. Invariant: a comparison takes the same time whichever
key it is and wherever it differs, and no key is ever logged or sent on.
"""

import hashlib
import hmac
from collections.abc import Mapping
from http import HTTPStatus

from gateway.errors import AUTHENTICATION, ApiError


class ApiKeys:
    """The accepted keys. An empty set lets everybody in."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Mapping[str, str]) -> str:
        """The key of a request, empty where none is needed. Raises ApiError (401)."""
        if not self._digests:
            return ""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise _refusal("no API key: send the header `Authorization: Bearer KEY`", "missing_api_key")
        given = _digest(key.strip())
        if not any([hmac.compare_digest(given, digest) for digest in self._digests]):  # noqa: C419 - all, always
            raise _refusal("the API key is not one of those accepted here", "invalid_api_key")
        return key.strip()


def namespace_of(key: str, cache_salt: str) -> str:
    """The cache salt of a key's requests: nobody can guess it, and it does not tell the key."""
    mixed = f"{len(key)}:{key}{cache_salt}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"octavo gateway cache salt:" + mixed).hexdigest()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _refusal(message: str, code: str) -> ApiError:
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        message,
        kind=AUTHENTICATION,
        code=code,
        headers={"www-authenticate": "Bearer"},
    )
