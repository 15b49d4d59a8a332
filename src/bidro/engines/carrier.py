"""What a network must do for a federated run: carry bytes to clients by name, and bring back the answers.

Everything else (rounds, checks, lost clients, checkpoints) is the coordinator's, and the same on any network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Delivered(NamedTuple):
    """What came back of one exchange with clients.

    Examples:
        >>> from bidro import Delivered
        >>> Delivered({"north": b"reply"}, {"south": "timed out"}).gone
        frozenset()
    """

    replies: dict[str, bytes]  # by client
    failures: dict[str, str]  # by client: why there is no reply, in a few words
    gone: frozenset[str] = frozenset()  # of the failures, who cannot come back in this session


class Carrier(Protocol):
    """Clients are known by name only, whatever the network calls them.

    Examples:
        >>> from bidro.engines.carrier import InMemory
        >>> network = InMemory({"north": lambda message: message.upper()})
        >>> network.exchange({"north": b"hello"}, timeout=1.0).replies
        {'north': b'HELLO'}
    """

    def absent(self, names: Iterable[str]) -> frozenset[str]:
        """Those among these clients that cannot be reached now but may still come to this session of the
        network, so that it is worth waiting for them."""

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> Delivered:
        """Send each client its message and wait at most `timeout` seconds for the replies.

        Every name in `messages` is in exactly one part of what is returned. Nothing is raised for a client
        that is absent, dies, raises, or is late.
        """


@dataclass(frozen=True)
class InMemory:
    """Clients as functions in this process, for tests and for trying things out."""

    clients: Mapping[str, Callable[[bytes], bytes]]

    def absent(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) - frozenset(self.clients)

    def exchange(self, messages: Mapping[str, bytes], timeout: float) -> Delivered:
        del timeout
        delivered = Delivered({}, {})
        # One after the other: threads that trace programs at once can fail inside Python 3.11 (its parser's
        # state is shared between them).
        for name, message in messages.items():
            try:
                delivered.replies[name] = self.clients[name](message)
            except Exception as error:
                delivered.failures[name] = f"{type(error).__name__}: {error}"
        return delivered
