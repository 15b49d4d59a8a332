"""Pictures of a fitted estimator on matplotlib axes of one's own; it is the extra `bidro[figures]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from bidro.core.errors import BidroError, require_package
from bidro.data.given_rows import by_client, client_labels, column_taken

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bidro.estimators import RobustEstimator

# Safe for colour-blind readers (Okabe and Ito), as in `report.figures`, which imports matplotlib at once.
_BLUE, _ORANGE, _SKY, _GREY = "#0072B2", "#E69F00", "#56B4E9", "#555555"
# Of more clients than this, those that are served worst are drawn.
_MOST_CLIENTS = 40


def plot_frontier(model: RobustEstimator, ax: Axes | None = None) -> Axes:
    """What every candidate costs on average and does for the worst tenth of the clients, against pooled
    training, on rows left out in cross-validation.

    Args:
        model: fitted, with weights="auto" or another choice by cross-validation.
        ax: where to draw; the current axes by default.

    Returns:
        The axes.

    Raises:
        BidroError: for an estimator that chose nothing.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from bidro import RobustRegressor, example_visits, plot_frontier
        >>> rows = example_visits()
        >>> model = RobustRegressor(curves=None).fit(rows[["age"]], rows["stay"], clients=rows["hospital"])
        >>> plot_frontier(model).get_xlabel()
        'change of the mean loss (%)'
    """
    check_is_fitted(model)
    found = model.calibration_
    if found is None or len(found.candidates) < 2:
        raise BidroError("Nothing was chosen in this fit, so there is no frontier; leave weights='auto'.")
    ax = _axes(ax)
    across, up = (100 * (v / v[found.pooled] - 1) for v in (found.means, found.worst_deciles))
    ax.plot(across, up, "o", color=_GREY, alpha=0.6, markersize=5, label="candidates")
    ax.plot(across[found.pooled], up[found.pooled], "s", color=_ORANGE, markersize=8, label="pooled training")
    ax.plot(across[found.place], up[found.place], "D", color=_BLUE, markersize=8, label="chosen")
    ax.axhline(0, color=_GREY, linewidth=0.8)
    if np.isfinite(found.max_cost) and found.max_cost > 0:
        ax.axvline(100 * found.max_cost, color=_BLUE, linestyle=":", linewidth=1, label="largest cost")
    ax.set_xlabel("change of the mean loss (%)")
    ax.set_ylabel("change of the worst tenth's loss (%)")
    ax.legend(frameon=False)
    return ax


def plot_curves(
    model: RobustEstimator, feature: str, clients: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """What a feature contributes to the prediction, by the models that are used: each client's own where it
    has one, the shared model dashed.

    Args:
        model: fitted.
        feature: its name, among `get_feature_names_out()`.
        clients: whose own curves to draw; all that have one by default.
        ax: where to draw; the current axes by default.

    Returns:
        The axes.

    Raises:
        BidroError: for a feature or a client that there is not.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from bidro import RobustRegressor, example_visits, plot_curves
        >>> rows = example_visits()
        >>> model = RobustRegressor(curves=None).fit(rows[["age"]], rows["stay"], clients=rows["hospital"])
        >>> plot_curves(model, "age").get_xlabel()
        'age'
    """
    check_is_fitted(model)
    if feature not in model.curves_:
        raise BidroError(f"There is no feature '{feature}'; there are {', '.join(model.curves_)}.")
    own = model.personal_curves_
    unknown = [] if clients is None else [name for name in clients if name not in own]
    if unknown:
        raise BidroError(f"Client '{unknown[0]}' has no model of its own; it uses the shared one.")
    ax = _axes(ax)
    for name in own if clients is None else clients:
        curve = own[name][feature]
        ax.plot(curve.knots, np.asarray(curve.values), color=_SKY, linewidth=1.2, alpha=0.8)
    shared = model.curves_[feature]
    ax.plot(shared.knots, np.asarray(shared.values), color=_BLUE, linestyle="--", linewidth=2)
    ax.plot([], [], color=_BLUE, linestyle="--", label="shared model")
    if own:
        ax.plot([], [], color=_SKY, label="each client's own")
    ax.set_xlabel(feature)
    ax.set_ylabel("contribution to the prediction")
    ax.legend(frameon=False)
    return ax


def plot_clients(
    model: RobustEstimator,
    X: Any,
    y: ArrayLike,
    clients: ArrayLike | str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How well each client is served on rows that were not used in `fit`, by the shared model and by the one
    that it uses: the root mean squared error, for classes the share of right predictions.

    Args:
        model: fitted.
        X: rows (N, k).
        y: their targets (N,).
        clients: as in `predict`.
        ax: where to draw; the current axes by default.

    Returns:
        The axes, the client that is served worst at the top.

    Raises:
        BidroError: where no client is named.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from bidro import RobustRegressor, example_visits, plot_clients
        >>> rows, later = example_visits(), example_visits(1)
        >>> model = RobustRegressor(curves=None).fit(rows[["age"]], rows["stay"], clients=rows["hospital"])
        >>> axes = plot_clients(model, later[["age"]], later["stay"], clients=later["hospital"])
        >>> len(axes.get_yticklabels())
        6
    """
    check_is_fitted(model)
    named = model._named.get("client") if clients is None else clients
    if named is None:
        raise BidroError("Name the client of every row: clients=.")
    rest, whose = column_taken(X, named, "client")
    if (column := model._named.get("client")) in list(getattr(rest, "columns", ())):
        rest, _ = column_taken(rest, column, "client")
    owners, truth = client_labels(whose, len(np.asarray(y))), np.asarray(y)
    right = hasattr(model, "classes_")
    shared, used = model.predict(rest), model.predict(rest, clients=owners)
    served = {}
    for name, of in (("shared model", shared), ("model in use", used)):
        good = (of == truth).astype(float) if right else (np.asarray(of, float) - truth.astype(float)) ** 2
        served[name] = {client: float(own.mean()) for client, own in by_client(owners, good).items()}
    order = sorted(served["model in use"], key=served["model in use"].__getitem__, reverse=right)
    order = order[-_MOST_CLIENTS:]
    ax = _axes(ax)
    for (name, each), colour, mark in zip(served.items(), (_GREY, _BLUE), "oD", strict=True):
        values = np.array([each[client] for client in order])
        ax.plot(100 * values if right else np.sqrt(values), range(len(order)), mark, color=colour, label=name)
    ax.set_yticks(range(len(order)), order)
    ax.set_xlabel("right predictions (%)" if right else "root mean squared error")
    ax.legend(frameon=False)
    return ax


def _axes(given: Axes | None) -> Axes:
    if given is not None:
        return given
    require_package("matplotlib", "figures", "Drawing")
    import matplotlib.pyplot as plt

    return plt.gca()
