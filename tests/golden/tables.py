"""Tables made of whole numbers by exact arithmetic, so that every machine has the same."""

import numpy as np
import pandas as pd

COLUMNS = ("x0", "x1", "x2")


def _bell(rng, shape):
    """Whole numbers, bell-shaped around 0 with a deviation of about 100."""
    return rng.integers(-100, 101, (3, *shape)).sum(axis=0)


def _parts(sizes, seed, apart=1):
    """(features (N, 3) and scores (N,) in hundredths, the client of each row (N,), a generator); `apart` says
    how far clients are."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = _bell(rng, (len(owner), 3))
    x[:, 0] += 30 * (owner % 3)
    score = (
        (100 + 20 * apart * (owner % 4)) * x[:, 0] // 100
        - 60 * x[:, 1] // 100
        + np.maximum(x[:, 2], 0)
        + 25 * apart * (owner % 2)
        + _bell(rng, (len(owner),)) // 2
    )
    return x, score, np.array([f"c{i:02d}" for i in owner]), rng


def numbers(sizes=(50, 70, 60), seed=1, apart=1):
    """(X, y, clients) of a number to be predicted: a slope that differs, a bend, and noise."""
    x, score, clients, _ = _parts(sizes, seed, apart)
    return pd.DataFrame(x / 100, columns=COLUMNS), score / 100, clients


def classes(count=2, sizes=(60, 70, 60), seed=2, apart=1):
    """(X, y, clients) of `count` classes by where the score lies, some of them changed."""
    x, score, clients, rng = _parts(sizes, seed, apart)
    codes = np.clip((score + 100 * count // 2) // 100, 0, count - 1)
    changed = rng.integers(0, 10, len(codes)) == 0
    codes = np.where(changed, rng.integers(0, count, len(codes)), codes)
    return pd.DataFrame(x / 100, columns=COLUMNS), np.array(list("abcd"))[codes], clients


def with_level(sizes=(90, 80), seed=3):
    """As `numbers`, with a category of two levels as a number, and a slope that depends on it."""
    x, score, clients, rng = _parts(sizes, seed)
    level = rng.integers(0, 2, len(score))
    frame = pd.DataFrame(x / 100, columns=COLUMNS).assign(level=level.astype(float))
    return frame, (score + level * np.maximum(x[:, 0], 0)) / 100, clients


def people_of(clients):
    """(N,) three rows after each other are one person's."""
    return np.array([f"{client}-{i // 3}" for i, client in enumerate(clients)])


def sites(names, rows, count=None, seed=5):
    """The table of a consortium, with a column `site` and a category."""
    x, score, clients, rng = _parts((rows,) * len(names), seed)
    ward = rng.integers(0, 2, len(score))
    score = score + 40 * ward
    target = score / 100 if count is None else np.clip((score + 50 * count) // 100, 0, count - 1)
    if count is not None:
        target = np.array(["no", "perhaps", "yes"])[target] if count == 3 else np.array(["no", "yes"])[target]
    found = {
        "site": np.array(names)[[int(name[1:]) for name in clients]],
        "u": x[:, 0] / 100,
        "v": 10 + x[:, 1] / 20,
        "ward": np.array(["a", "b"])[ward],
        "y": target,
    }
    return pd.DataFrame(found)
