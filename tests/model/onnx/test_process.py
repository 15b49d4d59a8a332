"""The process that runs a model: rows one by one, and nothing but computing."""

import subprocess
import sys

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.model.onnx import run
from bidro.model.onnx.run import OnnxModel, packed, unpacked
from tests.model.onnx.graphs import DOUBLE, INT64, STRING, linear, made, of_matrix

ROWS = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]])


def test_numbers_texts_and_whole_numbers():
    model = OnnxModel.of(linear([2.0, -1.0], 0.5), {}, 2)
    (found,) = model.run({"X": ROWS})
    np.testing.assert_allclose(found[:, 0], ROWS @ [2.0, -1.0] + 0.5, rtol=1e-15)
    by_name = made(
        [
            ("LabelEncoder", ["ward"], ["code"], {"domain": "ai.onnx.ml", "keys_strings": ["a", "b"],
                                                   "values_int64s": [10, 20], "default_int64": -1}),
            ("Add", ["code", "count"], ["sum"], {}),
            ("Cast", ["sum"], ["y"], {"to": DOUBLE}),
            ("Reshape", ["ward", "flat"], ["said"], {}),
        ],
        {"ward": (STRING, [None, 1]), "count": (INT64, [None, 1])},
        {"y": (DOUBLE, [None, 1]), "said": (STRING, [None])},
        {"flat": np.array([-1])},
    )  # fmt: skip
    model = OnnxModel.of(by_name, {"ward": "a"}, 0)
    numbers, texts = model.run(
        {"ward": np.array(["b", "a", "é", ""]), "count": np.array([[1.0], [2.0], [3.0], [0.5]])}
    )
    # Half a row is none, and what is no whole number has no prediction.
    np.testing.assert_array_equal(numbers[:, 0], [21.0, 12.0, 2.0, np.nan])
    assert texts.tolist() == ["b", "a", "é", ""]


def test_no_row_counts_in_the_prediction_of_another():
    """The sum over all rows of a batch is that of one row."""
    nodes = [
        ("ReduceSum", ["X", "axis"], ["sum"], {"keepdims": 1}),
        ("Mul", ["X", "zero"], ["none"], {}),
        ("Add", ["sum", "none"], ["y"], {}),
    ]
    model = OnnxModel.of(of_matrix(nodes, 1, {"axis": np.array([0]), "zero": np.zeros((1, 1))}), {}, 1)
    (found,) = model.run({"X": ROWS[:, :1]})
    np.testing.assert_array_equal(found, ROWS[:, :1])


def test_a_row_that_fails_has_no_prediction_and_the_others_have():
    nodes = [("Cast", ["X"], ["place"], {"to": INT64}), ("Gather", ["table", "place"], ["y"], {})]
    model = OnnxModel.of(of_matrix(nodes, 1, {"table": np.array([5.0, 6.0])}), {}, 1)
    (found,) = model.run({"X": np.array([[0.0], [9.0], [1.0]])})
    np.testing.assert_array_equal(found[:, 0], [5.0, np.nan, 6.0])


LOCKED = """
import os, socket, sys, threading
from bidro.model.onnx.process import limit, locked_down
went_on = threading.Event()
said = []
def another():
    went_on.wait()
    said.append(tried(lambda: open("/etc/hostname")))
def tried(what):
    try:
        what()
    except PermissionError:
        return "refused"
    return "done"
thread = threading.Thread(target=another)
thread.start()
print(locked_down())
for what in (
    lambda: open("/etc/hostname"),
    lambda: open("/tmp/bidro-left-behind", "w"),
    lambda: os.listdir("/"),
    lambda: os.unlink("/tmp/bidro-left-behind"),
    lambda: socket.socket(),
    lambda: socket.socketpair(),
    lambda: os.fork(),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.kill(os.getppid(), 0),
    lambda: os.dup2(1, 9),
):
    print(tried(what))
went_on.set()
thread.join()
print(*said)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_the_process_can_open_reach_and_begin_nothing():
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", *["refused"] * 11], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_a_model_is_run_behind_the_lock():
    assert OnnxModel.of(linear([1.0, 2.0]), {}, 2, must_lock=True).locked


def test_where_there_is_no_lock_a_site_is_told_so(monkeypatch):
    """By a process that says it has none, as on another system."""
    monkeypatch.setattr(run, "PROGRAM", ["-c", "import sys; sys.platform = 'plan9'\n"
                                          "from bidro.model.onnx.process import main; main()"])  # fmt: skip
    model = OnnxModel.of(linear([1.0, 2.0]), {}, 2)
    assert not model.locked
    assert model.run({"X": ROWS})[0].shape == (3, 1)
    with pytest.raises(BidroError, match="cannot shut a process off"):
        OnnxModel.of(linear([1.0, 2.0]), {}, 2, must_lock=True)


def test_too_slow_too_large_or_broken_is_said(monkeypatch):
    model = OnnxModel.of(linear([1.0, 2.0]), {}, 2)
    with monkeypatch.context() as slow:
        slow.setattr(run, "SECONDS", 1e-9)
        with pytest.raises(BidroError, match="would take about"):
            model.run({"X": ROWS})
    nodes = [("Expand", ["one", "shape"], ["large"], {}), ("ReduceSum", ["large"], ["sum"], {"keepdims": 0}),
             ("Add", ["X", "sum"], ["y"], {})]  # fmt: skip
    large = of_matrix(nodes, 1, {"one": np.ones(1), "shape": np.array([10**9])})
    with pytest.raises(BidroError, match=r"row of zeros|does not accept|memory"):
        OnnxModel.of(large, {}, 1)
    for program in ("import os; os.abort()", "print('x' * 10**8)", "pass", "print('no message')"):
        monkeypatch.setattr(run, "PROGRAM", ["-c", program])
        with pytest.raises(BidroError, match=r"ended without an answer|cut off"):
            model.run({"X": ROWS})


def test_messages_between_processes():
    from io import BytesIO

    data = packed({"a": [1, "é"]}, [b"", b"\0\1"])
    assert unpacked(BytesIO(data)) == ({"a": [1, "é"]}, [b"", b"\0\1"])
    for cut in (0, 4, 12, len(data) - 1):
        with pytest.raises(BidroError, match="cut off"):
            unpacked(BytesIO(data[:cut]))
