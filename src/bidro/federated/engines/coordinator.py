"""The server's side of every exchange, the same on any network: send, check, store, and do without lost
clients.

A network (`Carrier`) carries bytes to clients by name and brings back their replies. Everything else is here.

A reply counts only if it answers this very request (by its digest: not another round's, run's or client's),
has the expected names, shapes and finite numbers, and is not larger than that needs. Anything else is
refused, with its sender's name, as if nothing had come. A client that says why it does not answer (too few
rows, another schema) is not queried again, nor is one that contradicts itself; whether it does depends on the
query, so that the caller decides it (`check`).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np

from bidro.core.errors import BidroError, one_line
from bidro.federated.engines.record import Record
from bidro.federated.engines.wire import header_of, pack, unpack_like


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
        >>> from bidro.federated.engines.coordinator import InMemory
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


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Check(Protocol[T_contra]):
    def __call__(self, name: str, reply: T_contra, rows: int) -> None:
        """Raise BidroError where a client's reply, over so many rows, contradicts what it has reported."""


# What a reply may have beyond its numbers.
_HEADER_BYTES = 65_536


class Nothing(NamedTuple):
    """A message without arrays."""


class RemoteRefusalError(BidroError):
    """A client does not answer, and says why."""


class ContradictionError(BidroError):
    """A client's reply contradicts what it has reported; the sentence begins with "it"."""


class LostClientsError(Exception):
    """The run is to go on without these clients."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(f"{name}: {why}" for name, why in reasons.items()))
        self.reasons = dict(reasons)


class ClientsGoneError(BidroError):
    """The run is to wait for clients that can come back only to a new session of the network."""


@dataclass(frozen=True)
class Policy:
    """What to do about a client that does not answer within `timeout` seconds: `wait` queries it again for up
    to `patience` seconds and then stops the run, which can be resumed; `continue` goes on without it, as long
    as `min_clients` are left."""

    timeout: float = 60.0
    on_client_loss: Literal["wait", "continue"] = "wait"
    min_clients: int = 1
    patience: float = 3600.0

    def __post_init__(self) -> None:
        if self.on_client_loss not in ("wait", "continue"):
            raise BidroError(f"on_client_loss is 'wait' or 'continue'; got {self.on_client_loss!r}.")
        for name in ("timeout", "patience"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise BidroError(f"'{name}' must be a positive number of seconds; got {value!r}.")
        if not isinstance(self.min_clients, int) or self.min_clients < 1:
            raise BidroError(f"'min_clients' must be a whole number of at least 1; got {self.min_clients!r}.")


@dataclass(frozen=True)
class Coordinator:
    run: str  # the run's name, part of every request
    carrier: Carrier
    record: Record
    policy: Policy = field(default_factory=Policy)
    say: Callable[[str], None] = lambda _: None
    # Called with what is requested (a query, or the algorithm of a round), the round, who is waited for
    # and how many bytes have been sent both ways so far, when a round begins and whenever others are waited
    # for.
    watch: Callable[[str, int, Sequence[str], int], None] = lambda *_: None

    def ask(
        self,
        query: str,
        round_number: int,
        settings: Mapping[str, Mapping[str, Any]],
        messages: Mapping[str, Any],
        like: T,
        needs_all: bool = True,
        check: Check[T] | None = None,
        counts_rows: bool = True,
    ) -> dict[str, T]:
        """The replies to one query, of the shapes in `like`; settings, messages and replies are by client.
        Without `counts_rows` they need not say over how many rows they are.

        `check` is called with every reply, also with those on the record, and raises BidroError for one that
        contradicts what its client has reported; that client is then treated as one that refuses to answer.

        Every client's reply is there, or this raises: LostClientsError where the policy is to go on without
        some, BidroError where the run must stop. Without `needs_all`, where the policy is to go on, those
        that replied in time are there, and that some did not is on the record.
        """
        requests = {
            name: pack(
                messages[name],
                {"run": self.run, "question": query, "round": round_number, "client": name, **own},
            )
            for name, own in settings.items()
        }
        # Rounds that need not all go on without those who do not answer only where that is the policy.
        partial = not needs_all and self.policy.on_client_loss == "continue"

        answered: dict[str, T] = {}
        for name, request in requests.items():
            kept = self.record.reply(name, _digest(request))
            if kept is not None:
                answered[name], rows = checked_reply(kept, request, like, counts_rows)
                try:
                    require_consistent(check, name, answered[name], rows)
                except ContradictionError as error:
                    self.leave_out(query, round_number, {name: _contradicts(name, error)}, requests)
        began = time.monotonic()
        missed = {name for name in requests if self.record.missed(name, _digest(requests[name]))}
        said: list[str] = []
        while waiting := [name for name in requests if name not in answered and name not in missed]:
            if waiting != said:
                self.watch(_requested(query, settings), round_number, waiting, self._bytes())
                said = waiting
            faults, refusals, gone = self._exchange(
                query, round_number, requests, waiting, like, answered, check, counts_rows
            )
            if not faults and not refusals:
                break
            if refusals:
                self.leave_out(query, round_number, {**refusals, **faults}, requests)
            self._note(query, round_number, faults)
            if partial:
                self._require(answered, faults)
                for name in faults:
                    self.record.append({"client": name, "missed": _digest(requests[name])})
                break
            if self.policy.on_client_loss == "continue":
                self._lose(faults, requests)
            if gone:
                raise ClientsGoneError(f"{', '.join(sorted(gone))} left the network in the midst of the run")
            if time.monotonic() - began > self.policy.patience:
                limit = f"{self.policy.patience:g} seconds"
                silent = [f"Client '{n}' has not answered for {limit} ({why})." for n, why in faults.items()]
                raise BidroError(
                    f"{' '.join(silent)} What the others sent is kept: see to it and go on with --resume, or "
                    "without who is silent by on_client_loss = 'continue'."
                )
            time.sleep(min(1.0, self.policy.timeout / 10))
        return {name: answered[name] for name in requests if name in answered}

    def leave_out(
        self, query: str, round_number: int, reasons: Mapping[str, str], participating: Iterable[str]
    ) -> NoReturn:
        """Do without clients that will not answer, or cannot be believed, for these reasons: raises
        LostClientsError where the policy is to go on with the other participants, else BidroError."""
        self._note(query, round_number, reasons)
        if self.policy.on_client_loss == "wait":
            raise BidroError(" ".join(_sentence(name, why) for name, why in reasons.items()))
        self._lose(reasons, participating)

    def _lose(self, reasons: Mapping[str, str], participating: Iterable[str]) -> NoReturn:
        self._require([name for name in participating if name not in reasons], reasons)
        self.record.append({"lost": dict(reasons)})
        raise LostClientsError(reasons)

    def wait_for(self, names: Sequence[str]) -> None:
        """Until these clients can be reached, or the patience ends; who is still absent is then lost."""
        began = time.monotonic()
        limit = self.policy.patience if self.policy.on_client_loss == "wait" else self.policy.timeout
        said: list[str] = []
        while absent := sorted(self.carrier.absent(names)):
            if time.monotonic() - began > limit:
                return  # the first query will find them missing
            if absent != said:
                self.say(f"waiting for {', '.join(absent)}")
                said = absent
            time.sleep(min(0.5, self.policy.timeout / 10))

    def _exchange(
        self,
        query: str,
        round_number: int,
        requests: Mapping[str, bytes],
        names: Sequence[str],
        like: T,
        answered: dict[str, T],
        check: Check[T] | None,
        counts_rows: bool,
    ) -> tuple[dict[str, str], dict[str, str], frozenset[str]]:
        """Ask these clients once; (why some did not answer, why some will not, who cannot any more)."""
        faults: dict[str, str] = {}
        refusals: dict[str, str] = {}
        began = time.monotonic()
        delivered = self.carrier.exchange({name: requests[name] for name in names}, self.policy.timeout)
        seconds = time.monotonic() - began
        for name in names:
            data = delivered.replies.get(name)
            if data is None:
                faults[name] = one_line(delivered.failures.get(name, "no reply"))
                continue
            try:
                found, rows = checked_reply(data, requests[name], like, counts_rows)
                require_consistent(check, name, found, rows)
            except RemoteRefusalError as refusal:
                refusals[name] = f"Client '{name}': {refusal}"
                continue
            except ContradictionError as error:
                refusals[name] = _contradicts(name, error)
                continue
            except BidroError as error:
                faults[name] = f"its reply was refused: {one_line(error)}"
                continue
            head = {
                "client": name,
                "request": _digest(requests[name]),
                "question": query,
                "round": round_number,
                "rows": rows,
                "bytes_down": len(requests[name]),
                "bytes_up": len(data),
                "seconds": round(seconds, 3),
                "fields": {k: list(v.shape) for k, v in found._asdict().items()},  # type: ignore[attr-defined]
            }
            self.record.append(head, data)
            answered[name] = found
        return faults, refusals, delivered.gone

    def _bytes(self) -> int:
        """Sent both ways so far, in all sessions of the run."""
        return sum(head["bytes_down"] + head["bytes_up"] for head in self.record.heads if "request" in head)

    def _note(self, query: str, round_number: int, faults: Mapping[str, str]) -> None:
        for name, why in faults.items():
            self.record.append({"client": name, "question": query, "round": round_number, "fault": why})
            self.say(f"{name}: {why}")

    def _require(self, left: Sequence[str] | Mapping[str, Any], faults: Mapping[str, str]) -> None:
        if len(left) < self.policy.min_clients:
            raise BidroError(
                f"Only {len(left)} client(s) are left, fewer than min_clients = {self.policy.min_clients}. "
                f"{' '.join(_sentence(name, why) for name, why in faults.items())} What was received is "
                "kept: go on with --resume."
            )


def _requested(query: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The query, or the algorithm of a round."""
    described = next(iter(settings.values())).get("algorithm")
    return str(described["kind"]) if isinstance(described, Mapping) and "kind" in described else query


def _digest(request: bytes) -> str:
    return hashlib.sha256(request).hexdigest()


def reply_message(message: Any, request: bytes, rows: int) -> bytes:
    """A client's reply to the request, computed over so many rows."""
    return pack(message, {"answers": _digest(request), "rows": rows})


def refusal_message(request: bytes, why: str) -> bytes:
    """A client's answer to a request that it does not follow."""
    return pack(Nothing(), {"answers": _digest(request), "refused": why})


def require_consistent(check: Check[T] | None, name: str, reply: T, rows: int) -> None:
    """Raise ContradictionError where the check finds one, or comes to numbers that it cannot compute with."""
    if check is None:
        return
    try:
        with np.errstate(all="ignore"):
            check(name, reply, rows)
    except (BidroError, np.linalg.LinAlgError) as error:
        raise ContradictionError(str(error)) from error


def _sentence(name: str, why: str) -> str:
    """Why there is no answer from a client, by name, as a sentence."""
    said = why if why.startswith(f"Client '{name}'") else f"Client '{name}' did not answer: {why}"
    return said if said.endswith((".", "?", "!")) else f"{said}."


def _contradicts(name: str, error: ContradictionError) -> str:
    return f"Client '{name}' contradicts itself: {error}"


def checked_reply(data: bytes, request: bytes, like: T, counts_rows: bool = True) -> tuple[T, int]:
    """(the reply in `data`, over how many rows it is). Raises BidroError for anything else."""
    expected = sum(int(np.prod(v.shape)) * v.dtype.itemsize for v in like._asdict().values())  # type: ignore[attr-defined]
    if len(data) > expected + _HEADER_BYTES:
        raise BidroError(f"It has {len(data):,} bytes where {expected:,} are expected.")
    header = header_of(data)
    if header.get("answers") != _digest(request):
        raise BidroError("It answers another request.")
    if "refused" in header:
        raise RemoteRefusalError(one_line(header["refused"]))
    rows = header.get("rows")
    if not isinstance(rows, int) or rows < int(counts_rows):
        raise BidroError("It does not say over how many rows it was computed.")
    return unpack_like(data, like), rows
