"""Random rows of clients in the styles that real tables come in, the unkind ones among them."""

from __future__ import annotations

import numpy as np

STYLES = (
    "gaussian", "shifted", "year", "small", "large", "mixed sizes", "duplicated rows", "constant column",
    "rounding noise", "integer", "separable", "heavy tails", "unlike clients",
)  # fmt: skip
REGRESSION_STYLES = (
    "exact fit", "exact fit", "tiny target", "target 1e-160", "target mean 1e4", "target mean 1e6",
    "target mean 7e6",
)  # fmt: skip


def sample(rng, style, sizes, features, labels, intercept) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """(rows (N_i, m) a client, planted model). Labels are drawn from `labels`, or a target where there are
    none."""
    w = rng.choice([-2.0, -1.0, 0.5, 1.0, 1.5], features)
    b = float(rng.choice([0.0, 1.0, -0.5])) if intercept else 0.0
    tables = [rng.normal(size=(size, features)) + 0.3 * i for i, size in enumerate(sizes)]
    if style in ("integer", "exact fit"):
        tables = [np.rint(3 * t) for t in tables]
    elif style == "heavy tails":
        tables = [t / np.abs(rng.normal(size=t.shape)) ** 0.8 for t in tables]
    elif style == "duplicated rows":
        tables = [t[rng.integers(0, (len(t) + 2) // 3, len(t))] for t in tables]
    noise = 0.0 if style == "exact fit" else float(rng.choice([0.05, 0.3, 1.0]))
    scores = []
    for i, t in enumerate(tables):
        tilt = (0.5 if style == "unlike clients" else 0.0) * i * rng.normal(size=features)
        scores.append(t @ (w + tilt) + b + noise * rng.normal(size=len(t)))
    size, centre = np.ones(features), np.zeros(features)
    j = int(rng.integers(features))
    if style == "shifted":
        centre[:] = 10.0 ** rng.integers(2, 7)
    elif style == "year":
        centre[j], size[j] = 2000.0, rng.choice([1.0, 10.0])
    elif style == "small":
        size[:] = 1e-8
    elif style == "large":
        size[:] = 1e8
    elif style == "mixed sizes":
        size = 10.0 ** rng.uniform(-8, 8, features)
    tables = [t * size + centre for t in tables]
    if style == "constant column":
        for t in tables:
            t[:, j] = 3.7
        w[j] = 0.0
    elif style == "rounding noise":
        for t in tables:
            t[:, j] = 3.7 + 1e-15 * rng.normal(size=len(t))
        w[j] = 0.0
    planted = w / size
    if intercept:
        planted = np.append(planted, b - planted @ centre)
    if labels is not None:
        return _labelled(rng, style, tables, scores, labels, w, b, planted, intercept)
    if style == "exact fit":
        # Products and sums of halves and small integers have no rounding.
        scores = [t @ w + b for t in tables]
    factor, offset = 1.0, 0.0
    if style == "tiny target":
        factor = 1e-12
    elif style == "target 1e-160":
        factor = 1e-160
    elif style.startswith("target mean"):
        offset = float(style.split()[-1])
    planted = planted * factor
    if intercept:
        planted[-1] += offset
    return tuple(
        np.column_stack([t, s * factor + offset]) for t, s in zip(tables, scores, strict=True)
    ), planted


def _labelled(rng, style, tables, scores, labels, w, b, planted, intercept):
    """Labels by where the score lies among equally likely ranges; separable where nothing blurs them."""
    pooled = np.concatenate(scores)
    cuts = (
        np.quantile(pooled, np.linspace(0, 1, len(labels) + 1)[1:-1])
        if len(labels) > 2
        else [np.median(pooled)]
    )
    rows = []
    one_class = int(rng.integers(len(tables))) if rng.random() < 0.3 else -1
    for i, (table, score) in enumerate(zip(tables, scores, strict=True)):
        blur = 0.0 if style == "separable" else 0.7
        place = np.searchsorted(cuts, score + blur * rng.normal(size=len(score)))
        label = np.asarray(labels)[place]
        if i == one_class:
            label[:] = labels[int(rng.integers(len(labels)))]
        rows.append(np.column_stack([table, label]))
    if len(labels) == 2 and labels[0] == -1:
        return tuple(rows), planted
    # Softmax: one row of weights a class, the planted direction times its place.
    k = len(labels)
    places = np.arange(k) - (k - 1) / 2
    full = np.outer(places, planted[: len(w)]).ravel()
    return tuple(rows), np.append(full, places * (planted[-1])) if intercept else full
