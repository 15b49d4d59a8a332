"""The coordinator against clients that drop, delay, repeat, corrupt and restart, and a server that crashes.

Clients are functions in this process whose reply is a known function of the request, so that what a run must
come to is known: the state after t rounds is a digest of all replies in order.
"""

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bidro.core.errors import BidroError
from bidro.federated.engines.coordinator import (
    ClientsGoneError,
    Coordinator,
    Delivered,
    InMemory,
    LostClientsError,
    Policy,
    refusal_message,
    reply_message,
)
from bidro.federated.engines.record import Record
from bidro.federated.engines.wire import pack

NAMES = ("north", "south", "west")


class Question(NamedTuple):
    x: np.ndarray


class Answer(NamedTuple):
    value: np.ndarray
    gradient: np.ndarray


LIKE = Answer(np.zeros(()), np.zeros(3))


def numbers(name, request):
    seed = int.from_bytes(hashlib.sha256(name.encode() + request).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=4)


def honest(name, request):
    v = numbers(name, request)
    return reply_message(Answer(v[0], v[1:]), request, 20)


def bad_replies(name, request, earlier):
    """Every way in which bytes can be wrong; `earlier` is a reply to another request, if there is one."""
    good, v = honest(name, request), numbers(name, request)
    other = "north" if name != "north" else "south"
    return {
        "nan": reply_message(Answer(v[0], np.array([1.0, np.nan, 2.0])), request, 20),
        "infinite": reply_message(Answer(np.asarray(np.inf), v[1:]), request, 20),
        "shape": reply_message(Answer(v[0], v), request, 20),
        "type": reply_message(Answer(v[0].astype(np.float32), v[1:]), request, 20),
        "names": reply_message(Question(v), request, 20),
        "large": reply_message(Answer(v[0], np.zeros(20_000)), request, 20),
        "rows": reply_message(Answer(v[0], v[1:]), request, 0),
        "cut off": good[: len(good) // 2],
        "garbage": bytes(reversed(good)),
        "empty": b"",
        "no header": pack(Answer(v[0], v[1:])),
        "replayed": earlier if earlier is not None else honest(name, b"another request"),
        "another's": honest(other, request + b" "),
    }


def participating(coordinator, t, names=NAMES, **how):
    questions = dict.fromkeys(names, Question(np.array([float(t), 0.5])))
    return coordinator.ask("round", t, {name: {} for name in names}, questions, LIKE, **how)


def digest(state, replies):
    content = b"".join(name.encode() + np.asarray(v).tobytes() for name, r in replies.items() for v in r)
    return hashlib.sha256(state + content).digest()


def expected(rounds, names=NAMES):
    """The state that no fault may change, found with clients that always answer."""
    with tempfile.TemporaryDirectory() as folder, Record(Path(folder) / "record") as record:
        state = b""
        for t in range(1, rounds + 1):
            coordinator = Coordinator(
                "run", InMemory({n: lambda r, n=n: honest(n, r) for n in names}), record
            )
            state = digest(state, participating(coordinator, t, names))
        return state


FAULTS = [
    *("fine", "dropped", "raises", "late"),
    *bad_replies("north", b"", None),
]


class FaultyCarrier:
    """Behaves as `plan` says for the next exchanges, and then as it should."""

    def __init__(self):
        self.plan = []
        self.late = {}
        self.earlier = {}
        self.exchanges = 0

    def absent(self, names):
        return frozenset(names) - frozenset(NAMES)

    def exchange(self, messages, timeout):
        self.exchanges += 1
        faults = self.plan.pop(0) if self.plan else {}
        delivered = Delivered({}, {})
        # The order in which replies come back is not that in which clients were asked.
        for name in reversed(list(messages)):
            request, fault = messages[name], faults.get(name, "fine")
            if name in self.late:
                # What was late arrives now, in place of the answer to this request.
                delivered.replies[name] = self.late.pop(name)
            elif fault == "late":
                self.late[name] = honest(name, request)
                delivered.failures[name] = "no reply within the timeout"
            elif fault in ("dropped", "raises"):
                delivered.failures[name] = fault
            elif fault == "fine":
                delivered.replies[name] = self.earlier[name] = honest(name, request)
            else:
                delivered.replies[name] = bad_replies(name, request, self.earlier.get(name))[fault]
        return delivered


STATES = [expected(t) for t in range(12)]


class Schedules(RuleBasedStateMachine):
    """Rounds under any schedule of faults, with crashes of the server between and inside them."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "record"
        self.carrier, self.t, self.state = FaultyCarrier(), 0, b""
        self._open()

    def _open(self):
        self.record = Record(self.path)
        policy = Policy(timeout=1e-9, patience=1e9)
        self.coordinator = Coordinator("run", self.carrier, self.record, policy)

    @precondition(lambda self: self.t < 11)
    @rule(plan=st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(FAULTS)), max_size=3))
    def one_round(self, plan):
        self.carrier.plan = list(plan)
        self.t += 1
        self.state = digest(self.state, participating(self.coordinator, self.t))

    @rule(torn=st.integers(0, 40), garbage=st.binary(max_size=30))
    def the_server_crashes(self, torn, garbage):
        """Any end of what was not yet safe on the disk is lost or damaged; the run begins again from it."""
        self.record.close()
        content = self.path.read_bytes()
        self.path.write_bytes(content[: max(12, len(content) - torn)] + garbage)
        self._open()
        kept, before = len(self.record.heads), self.carrier.exchanges
        self.state = b""
        for t in range(1, self.t + 1):
            self.state = digest(self.state, participating(self.coordinator, t))
        if torn == 0:
            assert self.carrier.exchanges == before, "what is on the record is not asked again"
        assert kept <= len(self.record.heads)

    @precondition(lambda self: self.t < 11)
    @rule(answered=st.sets(st.sampled_from(NAMES)))
    def the_server_crashes_inside_a_round(self, answered):
        """Some clients' replies are safe when the server dies; only the others are asked again."""

        class DyingError(Exception):
            pass

        class Dies(FaultyCarrier):
            def exchange(self, messages, timeout):
                if set(messages) != set(NAMES):
                    raise DyingError
                delivered = Delivered({}, {})
                for name in messages:
                    if name in answered:
                        delivered.replies[name] = honest(name, messages[name])
                    else:
                        delivered.failures[name] = "gone"
                return delivered

        if answered in (set(), set(NAMES)):
            return
        dying = Coordinator("run", Dies(), self.record, Policy(timeout=1e-9, patience=1e9))
        with pytest.raises(DyingError):
            participating(dying, self.t + 1)
        self.record.close()
        self._open()
        self.t += 1
        self.state = digest(self.state, participating(self.coordinator, self.t))

    @invariant()
    def the_state_is_as_without_faults(self):
        assert self.state == STATES[self.t]

    def teardown(self):
        if hasattr(self, "record"):
            self.record.close()
            self.folder.cleanup()


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Whether a disk keeps its word is not what is tested here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_any_schedule_of_faults_and_crashes_comes_to_the_same_state():
    run_state_machine_as_test(
        Schedules,
        settings=settings(
            max_examples=2000,
            stateful_step_count=6,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "fine"])
def test_without_a_client_the_run_is_as_if_it_had_never_been(fault, tmp_path):
    carrier = FaultyCarrier()
    carrier.plan = [{}, {"south": fault}]
    policy = Policy(timeout=1e-9, on_client_loss="continue", min_clients=2)
    with Record(tmp_path / "record") as record:
        coordinator = Coordinator("run", carrier, record, policy)
        participating(coordinator, 1)
        with pytest.raises(LostClientsError) as lost:
            participating(coordinator, 2)
        assert set(lost.value.reasons) == {"south"}
        left, state = ("north", "west"), b""
        for t in range(1, 5):
            state = digest(state, participating(coordinator, t, left))
        assert state == expected(4, left)
        assert [head["lost"] for head in record.heads if "lost" in head] == [lost.value.reasons]
        carrier.plan = [{"west": "dropped"}]
        with pytest.raises(BidroError, match="Only 1 client"):
            participating(coordinator, 5, left)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan", "'gradient' in a message of type Answer is not finite"),
        ("shape", r"'gradient' in a message of type Answer is float64 of shape \(4,\), not"),
        ("replayed", "answers another request"),
        ("large", "bytes where 32 are expected"),
        ("names", "holds x where Answer needs value, gradient"),
        ("no header", "no header"),
    ],
)  # fmt: skip
def test_a_bad_reply_is_refused_with_its_senders_name(fault, words, tmp_path):
    carrier, said = FaultyCarrier(), []
    carrier.plan = [{"west": fault}]
    with Record(tmp_path / "record") as record:
        coordinator = Coordinator("run", carrier, record, Policy(timeout=1e-9), said.append)
        assert list(participating(coordinator, 1)) == list(NAMES)
        (noted,) = (head for head in record.heads if "fault" in head)
    assert noted["client"] == "west"
    assert said == [f"west: {noted['fault']}"]
    assert re.search(words, noted["fault"])


def test_a_client_that_says_why_it_does_not_answer_is_not_asked_again(tmp_path):
    clients = {name: lambda r, n=name: honest(n, r) for name in NAMES}
    clients["west"] = lambda request: refusal_message(request, "it has 7 rows, fewer than min_rows = 10.")
    with Record(tmp_path / "record") as record:
        waiting = Coordinator("run", InMemory(clients), record)
        with pytest.raises(BidroError, match="Client 'west': it has 7 rows"):
            participating(waiting, 1)
        going_on = Coordinator("run", InMemory(clients), record, Policy(on_client_loss="continue"))
        with pytest.raises(LostClientsError, match="7 rows"):
            participating(going_on, 1)


def test_all_who_do_not_answer_are_named_with_their_reasons(tmp_path):
    """Refusals and silences of one round, in one message, whatever the policy."""
    clients = {"north": lambda r: honest("north", r)}
    clients["south"] = lambda request: refusal_message(request, "its min_rows = 10.")
    clients["west"] = lambda request: refusal_message(request, "its owner has refused this run.")
    both = "Client 'south': its min_rows = 10. Client 'west': its owner has refused this run."
    for policy in (Policy(), Policy(on_client_loss="continue", min_clients=2)):
        with Record(tmp_path / policy.on_client_loss) as record, pytest.raises(BidroError) as refused:
            participating(Coordinator("run", InMemory(clients), record, policy), 1)
        assert both in str(refused.value)
    silent = {name: clients[name] for name in ("north", "south")}
    with Record(tmp_path / "silent") as record, pytest.raises(BidroError) as refused:
        participating(Coordinator("run", InMemory(silent), record), 1)
    assert "Client 'south': its min_rows = 10. Client 'west' did not answer: " in str(refused.value)


def test_waiting_ends_with_the_patience_and_nothing_is_lost(tmp_path):
    clients = {name: lambda r, n=name: honest(n, r) for name in ("north", "south")}
    with Record(tmp_path / "record") as record:
        coordinator = Coordinator("run", InMemory(clients), record, Policy(timeout=1e-9, patience=1e-9))
        with pytest.raises(BidroError, match="Client 'west' has not answered for"):
            participating(coordinator, 1)
        assert {head["client"] for head in record.heads if "request" in head} == {"north", "south"}


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self, monkeypatch):
        self.now, self.slept = 0.0, []
        monkeypatch.setattr("bidro.federated.engines.coordinator.time.monotonic", lambda: self.now)
        monkeypatch.setattr("bidro.federated.engines.coordinator.time.sleep", self.sleep)

    def sleep(self, seconds):
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("timeout", "pause"), [(60.0, 1.0), (4.0, 0.4)])
def test_a_silent_client_is_asked_again_until_the_patience_ends(timeout, pause, tmp_path, monkeypatch):
    clock, carrier = Clock(monkeypatch), FaultyCarrier()
    carrier.plan = [{"west": "dropped"}] * 100
    with Record(tmp_path / "record") as record:
        coordinator = Coordinator("run", carrier, record, Policy(timeout=timeout, patience=5 * pause + 0.1))
        with pytest.raises(BidroError, match="Client 'west' has not answered for"):
            participating(coordinator, 1)
    assert carrier.exchanges == 7
    assert clock.slept == pytest.approx([pause] * 6)


@pytest.mark.parametrize(
    ("lost", "limit", "pause"), [("wait", 30.0, 0.5), ("continue", 5.0, 0.5), ("continue", 2.0, 0.2)]
)
def test_clients_are_waited_for_as_long_as_the_policy_says(lost, limit, pause, tmp_path, monkeypatch):
    clock, said, looks = Clock(monkeypatch), [], []
    policy = Policy(timeout=limit if lost == "continue" else 60.0, patience=30.0, on_client_loss=lost)

    class Filling(InMemory):
        def absent(self, names):
            looks.append(clock.now)
            return frozenset(names) - frozenset(NAMES[: min(len(looks) // 2, 2)])

    with Record(tmp_path / "record") as record:
        Coordinator("run", Filling({}), record, policy, said.append).wait_for(NAMES)
    assert limit < clock.now <= limit + 1.5 * pause
    assert set(clock.slept) == {pause}
    # Who is absent is said when it changes, not at every look.
    assert said == ["waiting for north, south, west", "waiting for south, west", "waiting for west"]
    with Record(tmp_path / "record") as record:
        clients = {name: lambda r, n=name: honest(n, r) for name in (*NAMES, "more")}
        Coordinator("run", InMemory(clients), record, policy, said.append).wait_for(NAMES)
    assert len(said) == 3


def test_the_record_says_what_was_exchanged(tmp_path):
    requests = {}

    def listening(name, request):
        requests[name] = request
        return honest(name, request)

    clients = {name: lambda r, n=name: listening(n, r) for name in NAMES}
    with Record(tmp_path / "record") as record:
        participating(Coordinator("run", InMemory(clients), record), 4)
        heads = [head for head in record.heads if "request" in head]
    assert [head["client"] for head in heads] == list(NAMES)
    for head in heads:
        request = requests[head["client"]]
        assert (head["question"], head["round"], head["rows"]) == ("round", 4, 20)
        assert head["request"] == hashlib.sha256(request).hexdigest()
        assert head["bytes_down"] == len(request)
        assert head["bytes_up"] == len(honest(head["client"], request))
        assert head["fields"] == {"value": [], "gradient": [3]}
        assert 0 <= head["seconds"] < 60


def test_clients_that_left_the_network_are_not_waited_for(tmp_path):
    """They can come back only to a new session: what came in is kept, and the run says who left."""

    class Left(InMemory):
        def exchange(self, messages, timeout):
            assert set(messages) == set(NAMES), "nobody is asked again in this session"
            found = super().exchange({"north": messages["north"]}, timeout)
            absent = dict.fromkeys(("west", "south"), "left")
            return Delivered(found.replies, absent, frozenset(absent))

    clients = {name: lambda r, n=name: honest(n, r) for name in NAMES}
    with Record(tmp_path / "record") as record:
        coordinator = Coordinator("run", Left(clients), record, Policy(timeout=1e-9, patience=1e9))
        with pytest.raises(ClientsGoneError, match="south, west left the network"):
            participating(coordinator, 1)
        assert [head["client"] for head in record.heads if "request" in head] == ["north"]
        resumed = Coordinator("run", InMemory(clients), record, Policy(timeout=1e-9))
        assert digest(b"", participating(resumed, 1)) == STATES[1]


def test_a_round_that_does_not_need_all_goes_on_with_those_who_replied(tmp_path):
    carrier = FaultyCarrier()
    carrier.plan = [{"north": "dropped"}]
    with Record(tmp_path / "record") as record:
        coordinator = Coordinator("run", carrier, record, Policy(timeout=1e-9, on_client_loss="continue"))
        assert list(participating(coordinator, 1, needs_all=False)) == ["south", "west"]
        assert list(participating(coordinator, 2, needs_all=False)) == list(NAMES)
    with Record(tmp_path / "record") as record:
        again = Coordinator("run", carrier, record, Policy(timeout=1e-9, on_client_loss="continue"))
        assert list(participating(again, 1, needs_all=False)) == ["south", "west"]


def test_who_must_reply_is_a_matter_of_the_policy(tmp_path):
    """Rounds that do not need all: too few replies stop the run, a refusal loses its client, and where the
    policy is to wait everybody is waited for."""
    carrier = FaultyCarrier()
    carrier.plan = [dict.fromkeys(("north", "west"), "dropped")]
    with Record(tmp_path / "few") as record:
        two = Coordinator(
            "run", carrier, record, Policy(timeout=1e-9, on_client_loss="continue", min_clients=2)
        )
        with pytest.raises(BidroError, match=r"Only 1 client\(s\) are left, fewer than min_clients = 2"):
            participating(two, 1, needs_all=False)
    carrier.plan = [{"west": "dropped"}]
    with Record(tmp_path / "enough") as record:
        two = Coordinator(
            "run", carrier, record, Policy(timeout=1e-9, on_client_loss="continue", min_clients=2)
        )
        assert list(participating(two, 1, needs_all=False)) == ["north", "south"]
        assert [head["client"] for head in record.heads if "missed" in head] == ["west"]
    carrier.plan = [{"west": "dropped"}, {}]
    with Record(tmp_path / "waiting") as record:
        waiting = Coordinator("run", carrier, record, Policy(timeout=1e-9))
        assert list(participating(waiting, 1, needs_all=False)) == list(NAMES)
    clients = {name: lambda r, n=name: honest(n, r) for name in NAMES}
    clients["west"] = lambda request: refusal_message(request, "it has 7 rows.")
    with Record(tmp_path / "refused") as record:
        going_on = Coordinator("run", InMemory(clients), record, Policy(on_client_loss="continue"))
        with pytest.raises(LostClientsError, match="7 rows"):
            participating(going_on, 1, needs_all=False)


def exchanged_once(answer, folder):
    """(what one client's reply comes to, why it was refused)."""
    with Record(folder) as record:
        clients = {"north": answer}
        coordinator = Coordinator(
            "run", InMemory(clients), record, Policy(timeout=1e-9, on_client_loss="continue")
        )
        try:
            found = participating(coordinator, 1, ("north",))
        except BidroError:
            found = None
        return found, next((head["fault"] for head in record.heads if "fault" in head), None)


@pytest.mark.parametrize("over", [0, 8])
def test_a_reply_is_no_larger_than_its_numbers_and_64_kilobytes(over, tmp_path):
    """Headers are padded to multiples of 8 bytes, so that the next size above the limit is 8 more."""

    def large(request):
        v = numbers("north", request)
        wanted = 32 + 65_536 + over
        header = {"answers": hashlib.sha256(request).hexdigest(), "rows": 20, "more": ""}
        short = wanted - len(pack(Answer(v[0], v[1:]), header))
        reply = pack(Answer(v[0], v[1:]), {**header, "more": "-" * short})
        assert len(reply) == wanted
        return reply

    found, fault = exchanged_once(large, tmp_path / "record")
    if over:
        assert fault == "its reply was refused: It has 65,576 bytes where 32 are expected."
    else:
        assert fault is None
        assert found["north"].gradient.shape == (3,)


@pytest.mark.parametrize(
    ("rows", "fine"), [(1, True), (0, False), (-3, False), ("20", False), (None, False), (2.0, False)]
)
def test_a_reply_says_over_how_many_rows_it_is(rows, fine, tmp_path):
    def answer(request):
        v = numbers("north", request)
        return reply_message(Answer(v[0], v[1:]), request, rows)

    found, fault = exchanged_once(answer, tmp_path / "record")
    assert (found is not None) == fine
    assert (fault is None) == fine
    assert fine or "over how many rows" in fault


def test_how_long_an_exchange_took_is_on_the_record_in_milliseconds(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    def slow(request):
        clock.now += 1.23456
        return honest("north", request)

    with Record(tmp_path / "record") as record:
        participating(Coordinator("run", InMemory({"north": slow}), record), 1, ("north",))
        (seconds,) = (head["seconds"] for head in record.heads if "seconds" in head)
    assert seconds == 1.235


def test_a_record_is_refused_where_it_is_none(tmp_path):
    (tmp_path / "record").write_bytes(b"something else")
    with pytest.raises(BidroError, match="not the record of a run"):
        Record(tmp_path / "record")


def test_a_policy_waits_by_default_and_may_be_as_strict_as_can_be():
    usual = Policy()
    assert (usual.timeout, usual.on_client_loss, usual.min_clients, usual.patience) == (
        60.0,
        "wait",
        1,
        3600.0,
    )
    strict = Policy(timeout=1e-300, patience=5e-324, min_clients=1)
    assert strict.timeout > 0
    assert Policy(timeout=1, patience=2).patience == 2


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"on_client_loss": "maybe"}, "on_client_loss"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": np.inf}, "timeout"),
        ({"timeout": "60"}, "timeout"),
        ({"patience": -1.0}, "patience"),
        ({"patience": 0.0}, "patience"),
        ({"patience": np.inf}, "patience"),
        ({"patience": np.nan}, "patience"),
        ({"min_clients": 0}, "min_clients"),
        ({"min_clients": 1.5}, "min_clients"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(given, word):
    with pytest.raises(BidroError, match=word):
        Policy(**given)
