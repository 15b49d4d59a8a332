"""Requests that no honest server makes: honest ones with something changed, held against what was agreed on
by rules that share no code with the site's."""

import json
import struct

import numpy as np
from safetensors.numpy import load, save

from bidro.federated.engines.wire import header_of

VALUES = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        5,
        6,
        10**12,
        10**30,
        0.0,
        0.5,
        -1.0,
        1e200,
        float("inf"),
        float("nan"),
    ),
    *("", "prepare", "round", "bounds", "../up", "x" * 10_000, [], {}, [1, 2], {"kind": "os.system"}),
    *({"kind": "WassersteinBall", "radius": 1e9}, {"kind": "Penalty", "rho": 1e-9}, [[[[]]]], "\x00"),
)
NAMES = (
    "loss",
    "standard",
    "hold_out",
    "transport",
    "support",
    "deal",
    "split_seed",
    "seed",
    "folds",
    "people",
)
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e6, -1e6, 1e200, 21.0, np.inf, np.nan, 2.0**40, 3.0)


def changed(rng, requests):
    """One of the requests with one to three things changed."""
    request = requests[rng.integers(len(requests))]
    if rng.random() < 0.15:
        return _broken(rng, request)
    header, arrays = header_of(request), dict(load(request))
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.5:
            header = _other_header(rng, header, requests)
        else:
            arrays = _other_arrays(rng, arrays)
    text = json.dumps(header, sort_keys=True)
    return save({name: np.ascontiguousarray(v) for name, v in arrays.items()}, metadata={"bidro": text})


def _broken(rng, request):
    """Bytes changed, cut off, or added."""
    data = bytearray(request)
    kind = rng.integers(4)
    if kind == 0:
        for place in rng.integers(0, len(data), rng.integers(1, 20)):
            data[place] = rng.integers(256)
    elif kind == 1:
        data = data[: rng.integers(0, len(data))]
    elif kind == 2:
        data += bytes(rng.integers(0, 256, rng.integers(1, 200)).tolist())
    else:
        data[:8] = struct.pack("<Q", int(rng.integers(0, 2**62)))
    return bytes(data)


def _other_header(rng, header, requests):
    header, kind = dict(header), rng.integers(4)
    names = list(header)
    if kind == 0:
        header[names[rng.integers(len(names))]] = VALUES[rng.integers(len(VALUES))]
    elif kind == 1:
        del header[names[rng.integers(len(names))]]
    elif kind == 2:
        header[NAMES[rng.integers(len(NAMES))]] = VALUES[rng.integers(len(VALUES))]
    else:
        other = header_of(requests[rng.integers(len(requests))])
        name = list(other)[rng.integers(len(other))]
        header[name] = other[name]
        if isinstance(header.get("algorithm"), dict) and header["algorithm"] and rng.random() < 0.5:
            inner = dict(header["algorithm"])
            inner[list(inner)[rng.integers(len(inner))]] = VALUES[rng.integers(len(VALUES))]
            header["algorithm"] = inner
    return header


def _other_arrays(rng, arrays):
    arrays = dict(arrays)
    if not arrays:
        return {"x": np.zeros(3)}
    names = list(arrays)
    name, kind = names[rng.integers(len(names))], rng.integers(6)
    value = np.array(arrays[name])
    if kind == 0 and value.size:
        value = value.astype(float)
        value.flat[rng.integers(value.size)] = NUMBERS[rng.integers(len(NUMBERS))]
    elif kind == 1:
        value = np.zeros(tuple(rng.integers(0, 50, rng.integers(0, 4)).tolist()))
    elif kind == 2:
        value = value.astype(rng.choice(["float32", "int64", "uint8", "bool", "float64"]))
    elif kind == 3:
        value = value * NUMBERS[rng.integers(len(NUMBERS))]
    elif kind == 4:
        del arrays[name]
        return arrays
    else:
        value = np.stack([value] * int(rng.integers(1, 400)))
    arrays[name] = value
    return arrays


def outside(request, honest, agreed):
    """What is outside the agreement in a request that was answered; None where nothing is."""
    header, arrays = header_of(request), load(request)
    alike = [one for one in map(header_of, honest) if one["question"] == header["question"]]
    if not any(set(header) == set(one) for one in alike):
        return "another header"
    fixed = ("version", "client", "agreed", "table")
    if any(header.get(name) != alike[0].get(name) for name in fixed):
        return "another site, table or agreement"
    if "algorithm" in header and header["folds"] not in (0, 2, 3, 4, 5):
        return "folds"
    largest = agreed.limits.largest_coefficient * agreed.standard.target_spread * (1 + 1e-6)
    for name, value in arrays.items():
        if not np.all(np.isfinite(value)):
            return f"{name} is not finite"
        if name in ("x", "bend_x", "pooled") and value.size and np.abs(value).max() > largest:
            return f"{name} is too large"
        if name in ("x", "bend_x") and value.size > 16 * 6 * 4 * (len(agreed.schema.features) + 1):
            return "too many models"
        if name == "reference" and value.size:
            return "a cloud"
        if name == "levels" and not np.allclose(value, 1 - np.array([0.5, 0.8, 0.9, 0.95, 0.99])):
            return "levels"
        if name == "seen" and np.log2(value / agreed.standard.target_spread**2) % 1 != 0:
            return "a clip level"
    radius = header.get("ambiguity", {"radius": 0.0})["radius"]
    return None if 0 <= radius <= 1e3 else "a radius"
