"""The tool itself, on a toy: a change that is noticed, one that is not, and one that never ends."""

import ast

from tests.mutations.changes import changes
from tests.mutations.rooms import EQUIVALENT, TESTS, files_of
from tests.mutations.trial import Copy, sample

TOY = '''"""A toy: 1 + 1."""
import math


def larger(a: int = 1, b: float | None = None) -> float:
    if b is None:
        raise ValueError(f"{a + 1} is alone")
    return max(a, b)


def root(a):
    # The start is of no importance.
    low = 7.0
    while low > 1e-300 and abs(low * low - a) > 1e-9:
        low = (low + a / low) / 2
    return math.fabs(low)
'''
TEST = """from toy import larger, root
def test_larger(): assert larger(3, 2) == 3
def test_root(): assert abs(root(4) - 2) < 1e-6
"""


def test_changes_leave_texts_annotations_and_raises_alone():
    found = changes(TOY)
    assert {(change.line, change.what) for change in found} >= {
        (6, "b is None -> (b is not None)"),
        (6, "b is None -> True"),
        (6, "b is None -> False"),
        (8, "max -> min"),
        (13, "7.0 -> 14.0"),
        (13, "7.0 -> 0.0"),
        (15, "low + a / low -> (low - a / low)"),
        (15, "a / low -> (a * low)"),
    }
    assert not {1, 7, 14} & {change.line for change in found}
    assert all("None = None" in c.changed and ast.parse(c.changed) and c.changed != TOY for c in found)
    places = changes("import jax.numpy as jnp\nx = jnp.where(a < 0, not b, -c)\nd -= 1\nf(x)\n")
    assert [change.what for change in places if change.line == 2] == [
        "not b, -c -> -c, not b",
        "a < 0 -> (a <= 0)",
        "a < 0 -> (a >= 0)",
        "0 -> 1",
        "not b -> (b)",
        "-c -> (c)",
    ]
    assert {"d -= 1 -> d += 1", "f(x) -> pass"} <= {change.what for change in places}
    assert [change.what for change in changes("y = zip(a, b + 1, strict=True)\n")] == [
        "b + 1 -> (b - 1)",
        "1 -> 2",
        "1 -> 0",
    ]


def test_a_change_is_killed_survives_or_never_ends(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "toy.py").write_text(TOY)
    (tmp_path / "test_toy.py").write_text(TEST)
    copy = Copy.of(tmp_path / "source", tmp_path, tmp_path / "copy")
    enough = copy.limit(["test_toy.py"])
    by_name = {change.what: change for change in changes(TOY)}

    def outcome(what, limit):
        return copy.tried("toy.py", by_name[what], ["test_toy.py"], limit)

    assert outcome("max -> min", enough) == "killed"
    assert outcome("7.0 -> 14.0", enough) == "survived"
    assert outcome("a / low -> (a * low)", 2.0) == "timeout"
    assert (tmp_path / "source" / "toy.py").read_text() == TOY
    assert (tmp_path / "copy" / "toy.py").read_text() == TOY


def test_a_sample_is_the_same_for_the_same_seed():
    found = changes(TOY)
    assert sample(found, 4, "0") == sample(found, 4, "0") != sample(found, 4, "1")
    assert sample(found, 999, "0") == found


def test_every_file_and_every_excuse_is_there(request):
    root = request.config.rootpath
    for file, tests in TESTS.items():
        assert (root / "src" / "bidro" / file).exists()
        assert all((root / path.split("::")[0]).exists() for path in tests)
    assert files_of("core/sets") == ["core/sets/base.py", "core/sets/vectors.py", "core/sets/weights.py"]
    assert files_of("core/sets/base.py") == ["core/sets/base.py"]
    for one in EQUIVALENT:
        lines = (root / "src" / "bidro" / one.file).read_text().splitlines()
        assert one.line in {line.strip() for line in lines}, f"no longer there: {one.line}"
