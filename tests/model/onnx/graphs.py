"""Small ONNX models, made by hand."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

DOUBLE, INT64, STRING = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING


def made(nodes, inputs, outputs, constants=None, opset=17, domains=(), **more):
    """The bytes of a model; ports are {name: (type, shape)}, nodes (operator, inputs, outputs, more)."""
    graph = helper.make_graph(
        [helper.make_node(kind, ins, outs, **attributes) for kind, ins, outs, attributes in nodes],
        "graph",
        [helper.make_tensor_value_info(name, *port) for name, port in inputs.items()],
        [helper.make_tensor_value_info(name, *port) for name, port in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    versions += [helper.make_opsetid(domain, 1) for domain in domains]
    model = helper.make_model(graph, opset_imports=versions, ir_version=8)
    change = more.get("change")
    if change is not None:
        change(model)
    return model.SerializeToString()


def of_matrix(nodes, width=2, constants=None, out=(DOUBLE, [None, 1]), **more):
    """A model of one input X (rows, width) and one output y."""
    return made(nodes, {"X": (DOUBLE, [None, width])}, {"y": out}, constants, **more)


def linear(weights, offset=0.0, **more):
    weights = np.asarray(weights, float).reshape(-1, 1)
    nodes = [("MatMul", ["X", "w"], ["Xw"], {}), ("Add", ["Xw", "b"], ["y"], {})]
    return of_matrix(nodes, len(weights), {"w": weights, "b": np.array([[offset]])}, **more)
