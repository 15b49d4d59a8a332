"""A trained model as an ONNX file, for whatever runs such files: `bidro export`.

Its inputs are the columns of the table, by their names: numbers (double; NaN for an empty cell; dates as days
since 1970-01-01) and categories (text; "" for an empty cell), each of shape (rows, 1). Coding, filling and
curves are in the file, and a level that is not listed counts as in `Schema.numbers`. A cell that the model
refuses (a missing value without a filler) gives no prediction: NaN, and for classes an empty label. Where
clients have personal models, the column of the client is an input too; one that is not listed gets the
shared model.

Outputs: `prediction` (rows, 1) of a number; of classes `label` (rows,), and `probabilities` (rows, classes)
or, where the loss has none, `scores`. The classes stand in the metadata.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import bidro
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, require_package
from bidro.data.splines import Levels, Pair
from bidro.data.tables import Column
from bidro.losses import Tweedie, registry
from bidro.model.model_file import Model

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

# Old enough for the runtimes that are in use.
_OPSET, _ML_OPSET, _IR = 17, 3, 8


def onnx_of(model: Model) -> bytes:
    """The model as the bytes of an ONNX file. Raises BidroError where the package is missing, or names of
    columns clash."""
    require_package("onnx", "onnx", "An ONNX file")
    return _Graph(model).to_bytes()


class _Graph:
    """The nodes so far; every method adds some and returns the name of what they compute."""

    def __init__(self, model: Model) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self.model, self.helper, self.numpy_helper, self.types = model, helper, numpy_helper, TensorProto
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def to_bytes(self) -> bytes:
        """The whole file."""
        model, helper, types = self.model, self.helper, self.types
        columns = [
            (column.name, types.DOUBLE if column.levels is None else types.STRING)
            for column in model.schema.columns
            if column.of is None
        ]
        if model.personal:
            columns.append((model.schema.client, types.STRING))
        inputs = [helper.make_tensor_value_info(name, kind, [None, 1]) for name, kind in columns]
        scores = self._scores(self._design(self._features()))
        outputs = self._outputs(scores)
        named = {one.name for one in (*inputs, *outputs)}
        if len(named) < len(inputs) + len(outputs):
            raise BidroError(
                "A column is named as an output of the file, prediction, label, probabilities or scores; "
                "rename it and fit again."
            )
        graph = helper.make_graph(self.nodes, "bidro", inputs, outputs, self.constants)
        versions = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
        made = helper.make_model(graph, opset_imports=versions, ir_version=_IR, producer_name="bidro")
        made.producer_version = bidro.__version__
        about = {"target": model.schema.target}
        if model.schema.classes is not None:
            about["classes"] = json.dumps(list(model.schema.classes))
        helper.set_model_props(made, about)
        return bytes(made.SerializeToString(deterministic=True))

    def _features(self) -> str:
        """(rows, k) the features as the schema codes them."""
        return self._node("Concat", [self._coded(column) for column in self.model.schema.columns], axis=1)

    def _coded(self, column: Column) -> str:
        if column.of is not None:
            return self._node("Cast", [self._node("IsNaN", [column.of])], to=self.types.DOUBLE)
        return self._number(column) if column.levels is None else self._levels(column)

    def _number(self, column: Column) -> str:
        if column.exposure:
            return self._node("Log", [column.name])
        if column.filler is None:
            return column.name
        gaps = self._node("IsNaN", [column.name])
        return self._node("Where", [gaps, self._constant(float(column.filler)), column.name])

    def _levels(self, column: Column) -> str:
        """(rows, levels - 1) 1 where a row has the level, an equal share of each where it has none that is
        listed, NaN in all of them where the cell is refused."""
        assert column.levels is not None
        refused, unseen = -2, -1
        places = {level: k for k, level in enumerate(column.levels)}
        other = unseen if column.other is None else places[column.other]
        places[""] = refused if column.filler is None else places.get(str(column.filler), other)
        code = self._code(column.name, places, other)
        wanted = self._constant(np.arange(1, len(column.levels), dtype=np.int64)[None])
        has = self._node("Cast", [self._node("Equal", [code, wanted])], to=self.types.DOUBLE)
        instead = ((unseen, 1 / len(column.levels)), (refused, np.nan))
        for which, value in instead:
            such = self._node("Equal", [code, self._constant(np.full((1, 1), which, np.int64))])
            has = self._node("Where", [such, self._constant(value), has])
        return has

    def _code(self, column: str, places: dict[str, int], unknown: int) -> str:
        """(rows, 1) int64."""
        return self._node(
            "LabelEncoder",
            [column],
            domain="ai.onnx.ml",
            keys_strings=[*places],
            values_int64s=[*places.values()],
            default_int64=unknown,
        )

    def _design(self, features: str) -> str:
        """(rows, columns) what the slopes are of: the features, or of curves how far they are through each
        segment, in the units of training."""
        model = self.model
        if model.predictor().straight:
            return features
        basis, standard = model.predictor().basis, model.standard
        away = self._node("Sub", [features, self._constant(standard.mean[None])])
        rows = self._node("Div", [away, self._constant(standard.spread[None])])
        each = self._node("Gather", [rows, self._constant(basis.feature)], axis=1)
        for j, levels in enumerate(basis.by):
            if levels is not None:
                each = self._on_own_curve(rows, each, j, levels)
        # Not by Max and Min, which need not keep what is not a number.
        low, high = (self._constant(end[None]) for end in basis.ends)
        curves = self._node(
            "Sub", [self._clipped(each, low, high), self._constant(np.clip(0.0, *basis.ends)[None])]
        )
        if not basis.pairs:
            return curves
        return self._node("Concat", [curves, *(self._of_pair(rows, pair) for pair in basis.pairs)], axis=1)

    def _clipped(self, values: str, low: str, high: str) -> str:
        above = self._node("Where", [self._node("Less", [values, low]), low, values])
        return self._node("Where", [self._node("Greater", [above, high]), high, above])

    def _of_pair(self, rows: str, pair: Pair) -> str:
        """(rows, cells) how far both features of rows (rows, k) are through each cell."""
        sides = []
        for j, low, high in zip(pair.features, pair.ends[::2], pair.ends[1::2], strict=True):
            own = self._node("Gather", [rows, self._constant(np.full(pair.columns, j))], axis=1)
            ends = self._constant(low[None]), self._constant(high[None])
            begin = self._constant(np.clip(0.0, low, high)[None])
            sides.append(self._node("Sub", [self._clipped(own, *ends), begin]))
        return self._node("Mul", sides)

    def _on_own_curve(self, rows: str, each: str, j: int, levels: Levels) -> str:
        """(rows, columns) with 0, where a curve is 0, in segments of curves of feature j for other levels
        than that of the row, which is the one with the nearest values."""
        basis = self.model.predictor().basis
        coded = self._node("Gather", [rows, self._constant(np.array(levels.columns))], axis=1)
        coded = self._node("Unsqueeze", [coded, self._constant(np.array([1]))])
        away = self._node("Sub", [coded, self._constant(np.array(levels.values)[None])])
        squares = self._node("Mul", [away, away])
        apart = self._node("ReduceSum", [squares, self._constant(np.array([2]))], keepdims=0)
        level = self._node("ArgMin", [apart], axis=1, keepdims=1)
        of_feature = basis.feature == j
        of_column = np.where(of_feature, basis.curve - basis.curve[of_feature].min(), 0)[None]
        own = self._node("Equal", [level, self._constant(of_column)])
        on = self._node("Or", [own, self._constant(~of_feature[None])])
        return self._node("Where", [on, each, self._constant(0.0)])

    def _scores(self, design: str) -> str:
        """(rows, outputs) of the shared model, or of the row's client's own."""
        model = self.model
        parts = [model.predictor(x).linear for x in (model.x, *model.personal.values())]
        if not model.personal:
            shared, offset = parts[0]
            product = self._node("MatMul", [design, self._constant(shared.T)])
            return self._node("Add", [product, self._constant(offset[None])])
        # Places 1, 2, ... are clients with a personal model, 0 is anybody else.
        places = {name: k + 1 for k, name in enumerate(model.personal)}
        code = self._node(
            "Reshape", [self._code(model.schema.client, places, 0), self._constant(np.array([-1]))]
        )
        slopes = self._node("Gather", [self._constant(np.stack([s.T for s, _ in parts])), code], axis=0)
        base = self._node("Gather", [self._constant(np.stack([b for _, b in parts])), code], axis=0)
        one = self._constant(np.array([1]))
        product = self._node("MatMul", [self._node("Unsqueeze", [design, one]), slopes])
        return self._node("Add", [self._node("Squeeze", [product, one]), base])

    def _outputs(self, scores: str) -> list[Any]:
        model, info, double = self.model, self.helper.make_tensor_value_info, self.types.DOUBLE
        classes = model.schema.classes
        if classes is None:
            self._node("Exp" if isinstance(model.loss, Tweedie) else "Identity", [scores], "prediction")
            return [info("prediction", double, [None, 1])]
        if model.loss.scores == 1:
            above = self._node("Greater", [scores, self._constant(np.zeros((1, 1)))])
            best = self._node("Cast", [above], to=self.types.INT64)
            best = self._node("Reshape", [best, self._constant(np.array([-1]))])
            scores = self._node("Concat", [self._node("Mul", [scores, self._constant(0.0)]), scores], axis=1)
        else:
            best = self._node("ArgMax", [scores], axis=1, keepdims=0)
        first = self._node("Gather", [scores, self._constant(np.array(0))], axis=1)
        said = self._node("Gather", [self._constant(np.array(classes, object)), best], axis=0)
        none = self._constant(np.array([""], object))
        self._node("Where", [self._node("IsNaN", [first]), none, said], "label")
        label = info("label", self.types.STRING, [None])
        if registry.entry_of(model.loss).probabilities:
            self._node("Softmax", [scores], "probabilities", axis=1)
            return [label, info("probabilities", double, [None, len(classes)])]
        self._node("Identity", [scores], "scores")
        return [label, info("scores", double, [None, len(classes)])]

    def _constant(self, value: Floats | NDArray[Any] | float) -> str:
        name = f"bidro/constant/{len(self.constants)}"
        self.constants.append(self.numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(self, operator: str, inputs: list[str], name: str | None = None, **attributes: Any) -> str:
        output = f"bidro/{operator}/{len(self.nodes)}" if name is None else name
        self.nodes.append(self.helper.make_node(operator, inputs, [output], **attributes))
        return output
