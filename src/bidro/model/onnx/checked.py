"""What an ONNX file may hold: a plain function of one row, of operators that are known, and nothing else.

Read in the process that runs it, never where rows are kept. Refused are other operators and domains,
functions and subgraphs (loops, branches), tensors in other files, training parts, and whatever takes the size
of a tensor, or divides whole numbers, by what is in a row: so how long a row takes and whether it ends the
process does not depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from bidro.core.errors import BidroError, one_line
from bidro.model.onnx.run import MOST_BYTES, Port

MOST_NODES = 20_000  # of a graph
# The versions of the operators, by domain.
_VERSIONS = {"": (7, 26), "ai.onnx.ml": (1, 5)}
_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
# Inputs that say how large a tensor becomes or which part of it is meant, by operator.
_SIZES = {
    **dict.fromkeys(("Expand", "OneHot", "Reshape", "Split", "Squeeze", "TopK", "Unsqueeze"), (1,)),
    **{f"Reduce{name}": (1,) for name in _REDUCED},
    "ConstantOfShape": (0,),
    "Slice": (1, 2, 3, 4),
}
_DIVIDES = ("Div", "Reciprocal")
_PLAIN = (
    "Abs Add And ArgMax ArgMin BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant Cos Dropout "
    "Elu Equal Erf Exp Flatten Floor Gather GatherElements Gelu Gemm Greater GreaterOrEqual HardSigmoid "
    "HardSwish Identity IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max "
    "Mean Min Mish Mul Neg Not Or PRelu Pow Relu Round Selu Shape Sigmoid Sign Sin Softmax Softplus Softsign "
    "Sqrt Sub Sum Tanh Transpose Where Xor"
)
# Of ai.onnx.ml: those that give single precision, and others.
_FLOATS = (
    "LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler "
    "TreeEnsembleClassifier TreeEnsembleRegressor"
)
_OTHERS = (
    "ArrayFeatureExtractor Binarizer CategoryMapper FeatureVectorizer Imputer LabelEncoder TreeEnsemble "
    "ZipMap"
)
OPERATORS = {
    "": frozenset((*_SIZES, *_DIVIDES, *_PLAIN.split())),
    "ai.onnx.ml": frozenset((*_FLOATS.split(), *_OTHERS.split())),
}
_NUMBERS = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.INT64: "int64"}
_KINDS = {**_NUMBERS, TensorProto.STRING: "text"}
_WHOLE = {
    getattr(TensorProto, name)
    for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
}


class Described(NamedTuple):
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    classes: tuple[str, ...] | None  # of the columns of probabilities; None where the file does not say


def described(data: bytes) -> Described:
    """What a model takes and gives. Raises BidroError, in one sentence, for a file that is not accepted."""
    if len(data) > MOST_BYTES:
        raise BidroError(f"The file has {len(data):,} bytes; a model may have {MOST_BYTES:,}.")
    try:
        model = ModelProto.FromString(data)
    except DecodeError as error:
        raise BidroError("The file is no ONNX model, or a damaged one: it cannot be read.") from error
    if not model.ir_version or not model.graph.node or not model.graph.output:
        raise BidroError("The file is no ONNX model: there is no graph in it.")
    _require_versions(model)
    _require_plain(model)
    try:
        onnx.checker.check_model(model)
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise BidroError(f"The file is no valid ONNX model: {one_line(error, 200)}") from error
    _require_fixed_work(inferred)
    own = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_port(one, "input") for one in model.graph.input if one.name not in own)
    return Described(inputs, tuple(_port(one, "output") for one in model.graph.output), _classes(model))


def _require_versions(model: ModelProto) -> None:
    for one in model.opset_import:
        domain = "" if one.domain == "ai.onnx" else one.domain
        if domain not in _VERSIONS:
            raise BidroError(
                f"The model uses operators of '{one_line(domain, 100)}', which are not accepted."
            )
        least, most = _VERSIONS[domain]
        if not least <= one.version <= most:
            raise BidroError(
                f"The model uses version {one.version} of the operators of '{domain or 'ai.onnx'}'; accepted "
                f"are {least} to {most}."
            )


def _require_plain(model: ModelProto) -> None:
    """Raise BidroError for anything but known operators over tensors that are in the file."""
    graph = model.graph
    if model.functions or model.training_info or graph.sparse_initializer:
        raise BidroError("The model has functions, training parts or sparse tensors, which are not accepted.")
    if len(graph.node) > MOST_NODES:
        raise BidroError(f"The model has {len(graph.node):,} operators; it may have {MOST_NODES:,}.")
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.op_type not in OPERATORS.get(domain, ()):
            where = f" of '{one_line(domain, 100)}'" if domain else ""
            raise BidroError(
                f"The model uses the operator {one_line(node.op_type, 100)}{where}, which is not accepted."
            )
        for attribute in node.attribute:
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) or attribute.HasField("g"):
                raise BidroError(f"The model has a subgraph in {node.op_type}, which is not accepted.")
            if attribute.ref_attr_name or attribute.HasField("sparse_tensor"):
                raise BidroError(f"The model has an attribute of {node.op_type} that is not accepted.")
    for tensor in _tensors(model):
        if tensor.data_location != TensorProto.DEFAULT or tensor.external_data:
            raise BidroError(
                "The model keeps tensors in other files, which are not read; save it as one file "
                "(onnx.save_model with save_as_external_data=False)."
            )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)


def _require_fixed_work(model: ModelProto) -> None:
    """Raise BidroError where the size of a tensor, or a division of whole numbers, hangs on a row."""
    graph = model.graph
    # Names of tensors that are the same whatever is in a row, and types as far as they are known.
    fixed = {"", *(tensor.name for tensor in graph.initializer)}
    types = {
        one.name: one.type.tensor_type.elem_type for one in (*graph.input, *graph.value_info, *graph.output)
    }
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        for place in _SIZES.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] not in fixed:
                raise BidroError(
                    f"The model takes a size or place in {node.op_type} from a row, which is not accepted."
                )
        _note_types(node, types)
        by = node.input[-1] if node.op_type in _DIVIDES else ""
        if by not in fixed and types.get(by, TensorProto.INT64) in _WHOLE:
            raise BidroError("The model divides by whole numbers from a row, which is not accepted.")
        if node.op_type == "Shape" or all(name in fixed for name in node.input):
            fixed.update(node.output)


def _note_types(node: NodeProto, types: dict[str, int]) -> None:
    """What onnx does not infer: models of ai.onnx.ml give single precision but for the label of a classifier,
    and what follows has the type of its first input."""
    last = node.output[-1]
    if node.op_type in _FLOATS.split():
        types.setdefault(last, TensorProto.FLOAT)
    elif node.domain in ("", "ai.onnx") and node.input and node.input[0] in types:
        for name in node.output:
            types.setdefault(name, types[node.input[0]])


def _port(one: ValueInfoProto, what: str) -> Port:
    name = one_line(one.name, 100)
    if what == "output" and one.type.HasField("sequence_type"):
        return Port(one.name, "by class", False, None)
    tensor = one.type.tensor_type
    if tensor.elem_type not in _KINDS or not tensor.HasField("shape"):
        raise BidroError(
            f"The {what} '{name}' of the model is no tensor of float, double, int64 or string with a shape."
        )
    sizes = tensor.shape.dim
    rows_fit = len(sizes) > 0 and (not sizes[0].HasField("dim_value") or sizes[0].dim_value == 1)
    if len(sizes) not in (1, 2) or not rows_fit:
        raise BidroError(
            f"The {what} '{name}' of the model must have the rows as its first axis, of any number, and at "
            "most one other."
        )
    width = None
    if len(sizes) == 2 and sizes[1].HasField("dim_value"):
        width = int(sizes[1].dim_value)
    return Port(one.name, _KINDS[tensor.elem_type], len(sizes) == 1, 1 if len(sizes) == 1 else width)


def _classes(model: ModelProto) -> tuple[str, ...] | None:
    """As `bidro export` writes them."""
    found: Any = next((one.value for one in model.metadata_props if one.key == "classes"), None)
    if found is None:
        return None
    try:
        listed = json.loads(found)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise BidroError("The classes in the model's metadata must be a list of texts, as JSON.")
    return tuple(listed)
