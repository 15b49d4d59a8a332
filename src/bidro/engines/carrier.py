"""What a network must do for a federated run: carry bytes to clients by name, and bring back the answers.

Everything else (rounds, checks, lost clients, checkpoints) is the coordinator's, and the same on any network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Delivered(NamedTuple):
    replies: dict[str, bytes]  # by client
    failures: dict[str, str]  # by client: why there is no reply, in a few words
    gone: frozenset[str] = (
        frozenset()
    )  # those among them that cannot come back in this session of the network


class Carrier(Protocol):
    """Clients are known by name only, whatever the network calls them."""

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
        with ThreadPoolExecutor(max(1, len(messages))) as pool:
            answers = {
                name: pool.submit(self.clients[name], message)
                for name, message in messages.items()
                if name in self.clients
            }
            for name in messages:
                try:
                    delivered.replies[name] = answers[name].result()
                except Exception as error:
                    delivered.failures[name] = f"{type(error).__name__}: {error}"
        return delivered
