"""The ledger: processes that are killed or ask at once, and schedules that try to spend more than allowed."""

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from datetime import datetime
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from bidro.core.errors import BidroError
from bidro.privacy import ledger as module
from bidro.privacy.discrete_gaussian import discrete_gaussian
from bidro.privacy.ledger import Ledger, OverspentError

BUDGET = Fraction(1, 40)
SOURCE = str(Path(module.__file__).parents[2])


def noise():
    """A payload that is another one whenever it is drawn."""
    return repr(discrete_gaussian(Fraction(2**80), 3)).encode()


def never():
    raise AssertionError("drawn again")


def clock_at(day):
    """`datetime` whose clock stands still."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromisoformat(day).replace(tzinfo=tz)

    return Stopped


def other_process(script, *arguments):
    begun = f"""
        import sys, time
        from fractions import Fraction
        from pathlib import Path
        from bidro.privacy.discrete_gaussian import discrete_gaussian
        from bidro.privacy.ledger import Ledger
        path = Path(sys.argv[1])
        def say(word):
            print(word, flush=True)
        def noise():
            return repr(discrete_gaussian(Fraction(2**80), 3)).encode()
        def release(draw=noise):
            return Ledger.open(path).release(
                b"key", "training", Fraction(1, 100), Fraction(1, 40), {{"run": sys.argv[-1]}}, draw
            )
        {textwrap.indent(textwrap.dedent(script), " " * 8).strip()}
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(begun), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


def killed(process):
    """Wait for its first line, and kill it."""
    line = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return line


def test_killed_before_the_commit_nothing_was_sent_and_nothing_charged(tmp_path):
    """In the middle of the transaction, after the draw: what was drawn was seen by nobody."""
    path = tmp_path / "ledger.sqlite"
    process = other_process(
        """
        def stop():
            drawn = noise()
            say("drawn")
            time.sleep(60)
            return drawn
        release(stop)
        """,
        path,
    )
    assert killed(process) == "drawn"
    ledger = Ledger.open(path)
    assert ledger.spent() == 0
    assert ledger.releases() == []
    sent = ledger.release(b"key", "training", Fraction(1, 100), BUDGET, {}, noise)
    assert ledger.release(b"key", "training", Fraction(1, 100), BUDGET, {}, never) == sent


def test_killed_after_the_commit_the_same_bytes_are_sent_again_for_nothing(tmp_path):
    """Before they left, for all that the next process knows."""
    path = tmp_path / "ledger.sqlite"
    process = other_process("say(release().hex()); time.sleep(60)", path)
    first = bytes.fromhex(killed(process))
    ledger = Ledger.open(path)
    assert ledger.spent() == Fraction(1, 100)
    assert ledger.release(b"key", "training", Fraction(1, 100), BUDGET, {"run": "b"}, never) == first
    assert ledger.spent() == Fraction(1, 100)


def test_killed_at_any_moment_a_question_has_one_answer(tmp_path):
    """Processes that release, are killed after a random time, and begin again."""
    chance = random.Random(0)
    path = tmp_path / "ledger.sqlite"
    Ledger.open(path)
    seen = set()
    for _ in range(6):
        process = other_process("say('begun'); [say(release().hex()) for _ in range(10**6)]", path)
        assert process.stdout.readline().strip() == "begun"
        time.sleep(chance.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split("\n")
        process.wait()
        process.stdout.close()
        # The last line may have been cut.
        seen |= set(lines[:-1])
    sent = Ledger.open(path).release(b"key", "training", Fraction(1, 100), BUDGET, {}, noise)
    assert seen <= {sent.hex()}
    assert Ledger.open(path).spent() == Fraction(1, 100)


def test_four_processes_at_once_send_one_payload(tmp_path):
    path = tmp_path / "ledger.sqlite"
    begin = tmp_path / "begin"
    script = """
        while not Path(sys.argv[2]).exists():
            time.sleep(0.001)
        say(release().hex())
        """
    processes = [other_process(script, path, begin, f"run {i}") for i in range(4)]
    time.sleep(0.5)
    begin.touch()
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert len(set(answers)) == 1
    assert answers[0]
    ledger = Ledger.open(path)
    assert ledger.spent() == Fraction(1, 100)
    (entry,) = ledger.releases()
    assert sorted(sent.about["run"] for sent in entry.sent) == [f"run {i}" for i in range(4)]


def test_the_name_of_a_run_and_the_clock_change_nothing(tmp_path, monkeypatch):
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    first = ledger.release(b"key", "training", BUDGET, BUDGET, {"run": "a"}, noise)
    for day, run in (("1970-01-01", "b"), ("2100-01-01", "b"), ("2100-01-02", "c")):
        monkeypatch.setattr(module, "datetime", clock_at(day))
        assert ledger.release(b"key", "training", BUDGET, BUDGET, {"run": run}, never) == first
        with pytest.raises(OverspentError, match="new to this site"):
            ledger.release(b"other", "training", BUDGET / 10**9, BUDGET, {"run": run}, never)
    (entry,) = ledger.releases()
    assert [(s.about["run"], s.last, s.times) for s in entry.sent[1:]] == [
        ("b", "2100-01-01T00:00:00+00:00", 2),
        ("c", "2100-01-02T00:00:00+00:00", 1),
    ]


def test_a_spent_budget_refuses_what_is_new_and_says_what_is_left(tmp_path):
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger.release(b"1", "training", BUDGET * Fraction(3, 4), BUDGET, {}, noise)
    with pytest.raises(OverspentError, match=r"cost 0\.5 of its privacy budget, of which 0\.25 is"):
        ledger.release(b"2", "training", BUDGET / 2, BUDGET, {}, never)
    # To the last part of it, and not one more.
    ledger.release(b"3", "training", BUDGET / 4, BUDGET, {}, noise)
    with pytest.raises(OverspentError, match="of which 0 is left"):
        ledger.release(b"4", "training", Fraction(1, 10**30), BUDGET, {}, never)
    # Which rows it is over changes nothing: there is one budget.
    with pytest.raises(OverspentError, match="of which 0 is left"):
        ledger.release(b"5", "held-out", BUDGET / 100, BUDGET, {}, never)
    # A budget that was lowered since counts as it is now.
    with pytest.raises(OverspentError, match="of which 0 is left"):
        ledger.release(b"6", "training", BUDGET / 100, BUDGET / 2, {}, never)
    ledger.release(b"6", "training", BUDGET, 2 * BUDGET, {}, noise)
    assert ledger.spent() == 2 * BUDGET
    with pytest.raises(OverspentError, match="no privacy budget"):
        ledger.release(b"7", "training", BUDGET, Fraction(0), {}, never)


def test_more_rows_a_person_make_what_was_released_cost_more(tmp_path):
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    ledger.release(b"1", "training", BUDGET / 10, BUDGET, {}, noise, rows_per_person=1)
    assert ledger.spent(3) == BUDGET * Fraction(9, 10)
    with pytest.raises(OverspentError):
        ledger.release(b"2", "training", BUDGET / 5, BUDGET, {}, never, rows_per_person=3)
    ledger.release(b"2", "training", BUDGET / 10, BUDGET, {}, noise, rows_per_person=3)
    # Fewer rows a person refund nothing, and what is released then is charged for the most.
    assert ledger.spent(1) == ledger.spent(3) == BUDGET
    assert ledger.most_rows(1) == 3
    ledger.release(b"3", "training", BUDGET / 90, BUDGET * Fraction(11, 10), {}, noise, rows_per_person=1)
    assert ledger.spent(1) == BUDGET * Fraction(11, 10)
    with pytest.raises(OverspentError, match=r"cost 0\.1 of"):
        ledger.release(b"4", "training", BUDGET / 90, BUDGET, {}, never, rows_per_person=1)


def test_a_thousand_random_schedules_never_spend_more_than_the_budget(tmp_path, monkeypatch):
    """Questions old and new, of odd fractions, of either part, with draws that fail: against a plain
    account."""

    # What is on the disk and when is for the tests of killed processes.
    class Quick(sqlite3.Connection):
        def execute(self, statement, *parts):
            return super().execute(statement.replace("synchronous = FULL", "synchronous = OFF"), *parts)

    connect = partial(sqlite3.connect, factory=Quick)
    monkeypatch.setattr(sqlite3, "connect", connect)
    refused = failed = 0
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    # As long as this one is open the log is not written back, which takes most of the time of closing.
    open_throughout = connect(ledger.path, isolation_level=None)
    open_throughout.execute("SELECT * FROM releases").fetchall()
    for schedule in range(1000):
        chance = random.Random(schedule)
        budget = Fraction(chance.randint(1, 50), chance.randint(1, 997))
        answered, spent = {}, Fraction(0)
        # All schedules are in one file, one after the other.
        open_throughout.execute("DELETE FROM releases")
        for step in range(chance.randint(1, 6)):
            part = chance.choice(["training", "held-out"])
            key = f"{schedule} {part} {chance.randint(0, 4)}".encode()
            rho = budget * Fraction(chance.randint(1, 9), chance.choice([7, 9, 11, 13]))
            payload, broken = f"{schedule} {step}".encode(), chance.random() < 0.1

            def draw(payload=payload, broken=broken):
                if broken:
                    raise MemoryError
                return payload

            try:
                found = ledger.release(key, part, rho, budget, {"run": str(step)}, draw)
            except OverspentError:
                assert key not in answered
                assert spent + rho > budget
                refused += 1
            except MemoryError:
                assert key not in answered
                failed += 1
            else:
                if key not in answered:
                    assert found == payload
                    answered[key] = payload
                    spent += rho
                assert found == answered[key]
            assert ledger.spent() == spent <= budget
    open_throughout.close()
    assert refused > 300
    assert failed > 100


def test_only_the_owner_may_read_it(tmp_path):
    path = tmp_path / "ledger.sqlite"
    before = os.umask(0)
    try:
        modes = {}

        def looked():
            modes.update((file.name, stat.S_IMODE(file.stat().st_mode)) for file in tmp_path.iterdir())
            return b"payload"

        Ledger.open(path).release(b"key", "training", BUDGET, BUDGET, {}, looked)
        assert len(modes) == 3, "the database, its log and its index"
        assert set(modes.values()) == {0o600}
    finally:
        os.umask(before)


def test_it_is_on_the_disk_before_it_is_sent(tmp_path, monkeypatch):
    """Settings of SQLite, as they are inside a release."""
    made, connect = [], sqlite3.connect

    def noted(*parts, **how):
        made.append(connect(*parts, **how))
        return made[-1]

    def requested():
        found = [made[-1].execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")]
        return repr(found).encode()

    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    monkeypatch.setattr(sqlite3, "connect", noted)
    assert ledger.release(b"key", "training", BUDGET, BUDGET, {}, requested) == b"[('wal',), (2,)]"


def test_bad_files_and_requests_say_what_is_wrong(tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database at all" * 100)
    for path in (broken, tmp_path / "nowhere" / "ledger.sqlite", tmp_path):
        with pytest.raises(BidroError, match="cannot be kept in"):
            Ledger.open(path)
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    with pytest.raises(BidroError, match="must cost a positive rho"):
        ledger.release(b"1", "training", Fraction(0), BUDGET, {}, never)
    with closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute("DROP TABLE sent")
    with pytest.raises(BidroError, match="nothing was released"):
        ledger.release(b"1", "training", BUDGET, BUDGET, {}, noise)
    assert ledger.spent() == 0
