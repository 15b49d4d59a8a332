"""What is kept with a model, pickled or in its folder, holds no rows and no sums that give them back."""

import pickle
from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from bidro import Federation, RobustClassifier, RobustNetRegressor, RobustRegressor
from bidro.data.splines import Basis
from bidro.data.standardise import Standard
from bidro.fit.fit import fit
from bidro.fit.fitted import Options
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings
from bidro.losses.registry import LossChoice
from bidro.workflow.page_content import QUANTILES, row_quantiles

FEATURES, SMALL = 7, 4  # no other axis is as long as folds (4), folds and one, or features
NETWORK = "tests.estimators.test_pickles_hold_no_rows:network"


def network():
    from torch import nn

    return nn.Linear(FEATURES, 1)


def rows_of(count: int = 60):
    """Features, target and client of every row; the last client has four rows."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count + SMALL, FEATURES)).round(3)
    target = (features @ np.arange(FEATURES) + rng.normal(size=len(features))).round(3)
    names = np.repeat(["large", "other", "small"], [count // 2, count - count // 2, SMALL])
    return features, target, names


ESTIMATORS = {
    "squared": (RobustRegressor(curves=None), None),
    "curves": (RobustRegressor(curves=2), None),
    "radius": (RobustRegressor(radius="cross-validate", weights=2.0, curves=None), None),
    "regret": (RobustRegressor(criterion="regret", curves=None), None),
    "absolute": (RobustRegressor(loss="absolute", weights=2.0, curves=None), None),
    "two classes": (RobustClassifier(weights=2.0, curves=None), 2),
    "three classes": (RobustClassifier(weights=2.0, curves=None), 3),
    "network": (RobustNetRegressor(NETWORK, rounds=20), None),
}


def found_in(thing, seen=None):
    """Every array that can be reached from it, and every number outside one as an array of its own."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | type | None):
        return
    seen[id(thing)] = thing
    if hasattr(thing, "shape") and hasattr(thing, "dtype"):
        yield np.asarray(thing.detach() if hasattr(thing, "detach") else thing)
        return
    if isinstance(thing, bool | int | float):
        return
    if hasattr(thing, "items"):
        parts = list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = list(thing)
        if parts and all(isinstance(part, float) for part in parts):
            yield np.array(parts)
    else:
        parts = []
    for part in [*parts, *getattr(thing, "__dict__", {}).values()]:
        yield from found_in(part, seen)


def rebuilt(arrays, rows) -> int:
    """Of how many rows (N, m) is a vector in the arrays, or a difference of two of them, each times at most
    five; of two vectors the difference may also be that of two rows."""
    vectors = []
    for array in arrays:
        for axis in range(array.ndim):
            if array.dtype.kind == "f" and array.shape[axis] >= FEATURES:
                vectors += list(np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])[:, :FEATURES])
    given = np.array([one for one in vectors if np.all(np.isfinite(one))])
    times = np.arange(SMALL + 2)[:, None, None] * given  # (times, vectors, features)
    apart = [one - other for one, other in permutations(rows, 2)]
    close = 0
    for row in [*rows, *apart]:
        for one in times.reshape(-1, FEATURES):
            if np.any(np.max(np.abs(one - times - row), axis=-1) < 1e-7):
                close += 1
                break
    return close


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_no_sums_over_folds_and_no_rows_travel_in_a_pickle(kind):
    model, classes = ESTIMATORS[kind]
    features, target, names = rows_of()
    given = target if classes is None else np.digitize(target, [0.0, 2.0][: classes - 1])
    model.fit(features, given, clients=names)
    again = pickle.loads(pickle.dumps(model))
    arrays = list(found_in(again))
    assert any(array.size for array in arrays)
    for array in arrays:
        # Folds and one: those of all rows, too. Candidates by parameters: as good as second moments.
        assert not {SMALL, SMALL + 1} & set(array.shape), array.shape
        assert not {8, 15} & set(array.shape[:-1]), array.shape
    own = features[names == "small"]
    scaled = own if kind == "network" else (own - again.standard_.mean) / again.standard_.spread
    assert rebuilt(arrays, own) == rebuilt(arrays, scaled) == 0
    assert np.array_equal(again.predict(features), model.predict(features))


def test_the_attack_finds_rows_where_there_are_sums_over_folds():
    rows = np.random.default_rng(0).normal(size=(SMALL, FEATURES))
    without = np.array([rows[np.arange(SMALL) != fold].mean(axis=0) for fold in range(SMALL)])
    assert rebuilt([without, rows.mean(axis=0)], rows) == SMALL * SMALL
    assert rebuilt([rows.mean(axis=0), rows.std(axis=0)], rows) == 0


def test_a_pickle_grows_with_its_rows_by_the_bits_of_their_sketch_alone():
    sizes = {}
    for count in (200, 2000):
        features, target, names = rows_of(count)
        data = pickle.dumps(RobustRegressor(curves=3, pairs=None).fit(features, target, clients=names))
        bits = len(pickle.loads(data)._trained_rows.slots)
        sizes[count] = len(data) - bits // 8
    assert abs(sizes[2000] - sizes[200]) < 200


def test_what_follows_from_the_knots_is_not_pickled():
    basis = Basis(((0.0, 1.0, 2.0),) * 30)
    bare = len(pickle.dumps(basis))
    assert basis.roughness.size > bare
    again = pickle.loads(pickle.dumps(basis))
    assert len(pickle.dumps(basis)) == bare
    assert again == basis
    assert np.array_equal(again.roughness, basis.roughness)


def test_a_sketch_is_pickled_whole():
    features, target, names = rows_of()
    sketch = RobustRegressor(weights="fixed", personal=None, curves=None).fit(features, target, clients=names)
    one, again = sketch._trained_rows, pickle.loads(pickle.dumps(sketch._trained_rows))
    assert again.to_json() == one.to_json()


@pytest.mark.parametrize("small", [1, 10])
def test_a_worst_case_tells_the_means_of_no_client_that_has_few_rows(small):
    """Of one row the means are the row."""
    features, target, names = rows_of()
    names[:small] = "small"
    table = pd.DataFrame(features[:60, :3], columns=["a", "b", "c"]).assign(y=target[:60], site=names[:60])
    owners, columns = table["site"].to_numpy(str), ["a", "b", "c", "y"]
    network = LocalNetwork.of(table[["a", "b", "c"]].to_numpy(), table["y"].to_numpy(), owners, columns)
    choices = FitSettings(radius=0.1, weights="fixed", personal=None, curves=None)
    found = fit(network, Options(LossChoice("squared", None), choices))
    assert (found.displaced["small"].before is not None) == (small == 10)
    assert found.displaced["large"].before is not None


def test_quantiles_are_of_no_client_that_has_few_rows():
    """Of four rows, five quantiles give every value."""
    rng = np.random.default_rng(0)
    sizes = {"a": 9, "b": 10, "c": 1, "d": 40}
    rows = {name: rng.normal(size=(count, 3)) for name, count in sizes.items()}
    found = row_quantiles(Federation.from_arrays(rows, "unbounded"), Standard.as_they_are(2))
    assert found.clients == ("b", "d")
    for name, own in zip(found.clients, found.quantiles, strict=True):
        np.testing.assert_allclose(own, np.quantile(rows[name][:, :2], QUANTILES, axis=0).T)
