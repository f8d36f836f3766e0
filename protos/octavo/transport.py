"""gRPC channel settings that both ends must agree on, and the sizes of the largest legal messages.

Owns keepalive, message limits, and what an address is and may be; knows no message's content. Invariant: a
client's ping interval is never shorter than what a server accepts, so that no quiet stream dies with
too_many_pings.

Newer gRPC waits for the answer to a ping by ping_timeout_ms (60 s by default), whatever a shorter
keepalive_timeout_ms says; so both are set.
"""

import ipaddress
from pathlib import Path
from urllib.parse import quote, unquote

ChannelOptions = list[tuple[str, int]]

CLIENT_PING_SECONDS = 10
SERVER_PING_SECONDS = 20
PING_TIMEOUT_SECONDS = 10
ACCEPTED_PING_SECONDS = 5
MIB = 1 << 20
LARGEST_MESSAGE = (1 << 31) - 1
"""What gRPC can carry at all."""

_SETUP_BYTES = 160 + (1 << 18)  # with a grammar: 64 KiB of text, each character escaped once or twice
_BIAS_BYTES = 8 * 1024 + 4 * 256  # of logit_bias, and of the ids that min_tokens suppresses
_LOGPROB_BYTES = 8 * (1 + 20)  # of one position
_ENVELOPE_BYTES = 4096


def server_options(max_receive: int, max_send: int = LARGEST_MESSAGE) -> ChannelOptions:
    """Options of a server that takes messages of up to max_receive bytes. Servers never share a port."""
    return [
        ("grpc.max_receive_message_length", max_receive),
        ("grpc.max_send_message_length", max_send),
        ("grpc.keepalive_time_ms", SERVER_PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", ACCEPTED_PING_SECONDS * 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.so_reuseport", 0),
    ]


def client_options(max_receive: int, max_send: int = LARGEST_MESSAGE) -> ChannelOptions:
    """Options of a channel of its own connection that takes messages of up to max_receive bytes. No proxy is
    asked: http_proxy of the environment is for the web.
    """
    return [
        ("grpc.max_receive_message_length", max_receive),
        ("grpc.max_send_message_length", max_send),
        ("grpc.keepalive_time_ms", CLIENT_PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def plan_bytes_bound(
    max_batch_tokens: int, max_batch_seqs: int, max_model_len: int, block_size: int, num_blocks: int
) -> int:
    """Bytes that the largest legal `StepPlan` can take: full token budget, all rows set up anew with the
    longest tables, histories and biases.
    """
    table_entries = max_batch_seqs * -(-max_model_len // block_size)
    flat = 4 * (
        3 * max_batch_tokens + 2 * max_batch_tokens
    )  # ids, positions, slots; sample positions and rows
    rows = max_batch_seqs * (4 * 4 + _SETUP_BYTES + _BIAS_BYTES + 4 * max_model_len)
    blocks = 4 * (num_blocks + 2 * max_batch_seqs)
    return min(LARGEST_MESSAGE, _ENVELOPE_BYTES + flat + rows + 12 * table_entries + blocks)


def result_bytes_bound(max_batch_seqs: int, max_batch_tokens: int) -> int:
    """Bytes that the largest legal `StepResult` can take: every row sampled and failed with a detail of 256
    bytes, and every token, sampled or of a prompt, with all its log-probabilities.
    """
    rows = max_batch_seqs * (8 + 256 + 32 + 32 + _LOGPROB_BYTES)
    return min(LARGEST_MESSAGE, _ENVELOPE_BYTES + rows + max_batch_tokens * _LOGPROB_BYTES)


def unix_address(path: Path) -> str:
    """The address of a Unix socket, in which gRPC takes %41 for A and ? for the path's end."""
    return f"unix:{quote(bytes(path))}"


def unix_path(address: str) -> str | None:
    """The path of a Unix socket as gRPC reads it; None for any other address."""
    scheme, _, path = address.partition(":")
    return unquote(path, errors="surrogateescape") if scheme == "unix" else None


def is_private(address: str) -> bool:
    """Whether only this machine can reach a listen address: a Unix socket or a loopback host."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_address(address: str) -> None:
    """Raises ValueError, saying what it must be, when an address is none. gRPC takes a port modulo 2^16."""
    scheme, _, rest = address.partition(":")
    host, _, port = address.rpartition(":")
    if scheme in ("unix", "unix-abstract"):
        good = bool(rest) and _fits(rest, "utf-8")
    else:
        good = ":" in address and port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 1 << 16
        good = good and _fits(host, "idna")
    if not good:
        raise ValueError("must be host:port with a port from 0 to 65535, or unix:/path")
    if host.startswith("[") != host.endswith("]") or _is_ipv6(host):
        raise ValueError("must have brackets around an IPv6 address, as [::1]:7450")


def require_host(name: str) -> str:
    """The name. Raises ValueError when no system can be asked for such a host: labels have 1 to 63 bytes."""
    if not _fits(name, "idna"):
        raise ValueError("must be a host's name or address")
    return name


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def require_private(address: str, allow_insecure_bind: bool) -> None:
    """Raises ValueError when a listen address is none, or has no TLS and could be reached from elsewhere and
    nobody asked for that by name. The text is what comes after the setting's name and value.
    """
    require_address(address)
    if not allow_insecure_bind and not is_private(address):
        raise ValueError(
            "is not a loopback address or Unix socket, and there is no TLS; "
            "pass --allow-insecure-bind to serve it all the same"
        )


def bound_address(address: str, port: int) -> str:
    """The address that was really bound: port 0 replaced by the port that the system picked."""
    if address.startswith(("unix:", "unix-abstract:")):
        return address
    return f"{address.rpartition(':')[0]}:{port}"
