"""Files that are no models, or more than models: one sentence each, and nothing of them is done."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from bidro.core.errors import BidroError
from bidro.model.onnx.run import MOST_BYTES, OnnxModel
from tests.model.onnx.graphs import DOUBLE, INT64, linear, made, of_matrix


def external(model):
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"


def quietly_external(model):
    """The place is named, and the mark that it counts is not."""
    entry = model.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "weights.bin"


def with_function(model):
    model.functions.add(name="f", domain="own")


def branching():
    branch = helper.make_graph(
        [helper.make_node("Identity", ["X"], ["out"])],
        "branch",
        [],
        [helper.make_tensor_value_info("out", DOUBLE, None)],
    )
    nodes = [
        ("ReduceSum", ["X"], ["sum"], {"keepdims": 0}),
        ("Cast", ["sum"], ["yes"], {"to": TensorProto.BOOL}),
        ("If", ["yes"], ["y"], {"then_branch": branch, "else_branch": branch}),
    ]
    return of_matrix(nodes)


def subgraph_in_a_known_operator():
    branch = helper.make_graph([], "branch", [], [])
    return of_matrix([("Identity", ["X"], ["y"], {"body": branch})])


def size_from_the_row():
    """A tensor as large as a cell says: whoever asks would see how long that takes."""
    nodes = [
        ("Cast", ["X"], ["whole"], {"to": INT64}),
        ("Reshape", ["whole", "flat"], ["shape"], {}),
        ("Expand", ["one", "shape"], ["large"], {}),
        ("ReduceSum", ["large"], ["sum"], {}),
        ("Reshape", ["sum", "as_row"], ["y"], {}),
    ]
    return of_matrix(nodes, 2, {"flat": np.array([-1]), "one": np.ones((1, 1)), "as_row": np.array([1, 1])})


def divided_by_whole_numbers():
    """By 0, that ends the process."""
    nodes = [
        ("Cast", ["X"], ["whole"], {"to": INT64}),
        ("Div", ["ones", "whole"], ["divided"], {}),
        ("Cast", ["divided"], ["y"], {"to": DOUBLE}),
    ]
    return of_matrix(nodes, 1, {"ones": np.ones((1, 1), np.int64)})


def huge_for_its_size():
    """A few bytes that stand for eighty gigabytes."""
    nodes = [("Add", ["X", "X"], ["doubled"], {}), ("MatMul", ["doubled", "w"], ["y"], {})]

    def declare(model):
        tensor = model.graph.initializer[0]
        del tensor.dims[:]
        tensor.dims.extend([2, 5 * 10**9])

    return of_matrix(nodes, 2, {"w": np.ones((2, 1))}, change=declare)


def nested_bytes(depth):
    """Messages within messages, in the field of a graph's node's attribute's graph."""
    data = b""
    for _ in range(depth):
        for field in (6, 5, 1, 7):  # g, attribute, node, graph
            size, length = len(data), b""
            while True:
                size, low = size >> 7, size & 0x7F
                length += bytes([low | (0x80 if size else 0)])
                if not size:
                    break
            data = bytes([field << 3 | 2]) + length + data
    return data


FILES = {
    "nothing": (b"", "no ONNX model"),
    "text": (b"stay,age\n3,70\n", "no ONNX model"),
    "noise": (np.random.default_rng(0).bytes(5000), "no ONNX model"),
    "cut off": (linear([1.0, 2.0])[:-40], "no ONNX model|no valid ONNX|no graph"),
    "large": (b"\0" * (MOST_BYTES + 1), "a model may have"),
    "another domain": (linear([1.0, 2.0], domains=["com.microsoft"]), "'com.microsoft', which are not"),
    "another version": (linear([1.0, 2.0], opset=1), "accepted are 7 to"),
    "an unknown operator": (of_matrix([("RandomNormalLike", ["X"], ["y"], {})]), "RandomNormalLike, which"),
    "an operator of another domain": (
        of_matrix([("Identity", ["X"], ["y"], {"domain": "own"})], domains=["own"]),
        "operators of 'own'",
    ),
    "a loop": (of_matrix([("Loop", ["", "", "X"], ["y"], {})]), "operator Loop, which"),
    "a branch": (branching(), "operator If, which"),
    "a hidden subgraph": (subgraph_in_a_known_operator(), "a subgraph in Identity"),
    "another file": (linear([1.0, 2.0], change=external), "tensors in other files"),
    "another file, quietly": (linear([1.0, 2.0], change=quietly_external), "tensors in other files"),
    "a function": (linear([1.0, 2.0], change=with_function), "functions, training parts"),
    "a size from a row": (size_from_the_row(), "a size or place in Expand from a row"),
    "whole numbers divided": (divided_by_whole_numbers(), "divides by whole numbers"),
    "a bomb": (huge_for_its_size(), "no valid ONNX|does not accept|more memory"),
    "a deep bomb": (nested_bytes(3000), "no ONNX model|subgraph|not accepted"),
    "a graph of numbers nobody has": (
        made(
            [("Identity", ["X"], ["y"], {})],
            {"X": (TensorProto.COMPLEX64, [None, 2])},
            {"y": (DOUBLE, [None, 2])},
        ),
        "no valid ONNX|no tensor of float",
    ),
    "32 rows at once": (
        made([("Identity", ["X"], ["y"], {})], {"X": (DOUBLE, [32, 1])}, {"y": (DOUBLE, [32, 1])}),
        "the rows as its first axis",
    ),
    "classes that are none": (
        linear([1.0, 2.0], change=lambda model: helper.set_model_props(model, {"classes": "yes"})),
        "a list of texts",
    ),
    "what fails on every row": (
        of_matrix([("Gather", ["X", "far"], ["y"], {"axis": 1})], 2, {"far": np.array([7])}),
        "does not accept|row of zeros|no valid ONNX",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_one_sentence_for_every_file_that_is_no_model(name):
    data, words = FILES[name]
    with pytest.raises(BidroError, match=words) as refused:
        OnnxModel.of(data, {}, 2)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert len(sentence) < 400


def test_a_file_that_is_not_there_or_huge(tmp_path):
    with pytest.raises(BidroError, match=r"none.onnx' cannot be read"):
        OnnxModel.read(tmp_path / "none.onnx", {}, 2)
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(10**12)  # a hole, which takes no place
    with pytest.raises(BidroError, match=r"huge.onnx' has 1,000,000,000,000 bytes; a model may have"):
        OnnxModel.read(tmp_path / "huge.onnx", {}, 2)
