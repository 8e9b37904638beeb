"""What the command line says of the server."""

import ipaddress
from dataclasses import dataclass

ANYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Options:
    """keys: API keys, none: anyone who reaches the server may use it. receive_s: seconds for a request to arrive.

    grace_s: seconds that requests have to end after SIGTERM. memory: bytes for all loaded models together.
    """

    models: tuple[str, ...]
    host: str = "127.0.0.1"
    unix: str | None = None
    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # further names in Host
    origins: tuple[str, ...] = ()  # of other web pages that may use the server; "*": all
    max_body: int = 4 << 20
    receive_s: float = 30.0
    grace_s: float = 30.0
    memory: int = 4 << 30
    ctx: int | None = None
    cache_tokens: int | None = None
    threads: int | None = None
    precision: str = "fast"
    max_waiting: int = 256

    @property
    def local(self) -> bool:
        """Whether only this computer reaches the server."""
        return self.unix is not None or is_loopback(self.host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
