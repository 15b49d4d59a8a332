"""Sites that answer every question with numbers other than those that they have."""

import json
from collections.abc import Callable

import numpy as np
from safetensors.numpy import load, save

from bidro.federated.engines.wire import header_of

# From a question's name, the algorithm's (of rounds) and the arrays of the true reply to those of the lie.
Change = Callable[[str, str, dict[str, np.ndarray]], dict[str, np.ndarray] | None]


def lying(answer, change: Change):
    """A site whose replies are changed; where `change` gives None, the true ones."""

    def reply(request: bytes) -> bytes:
        query, told = header_of(request), answer(request)
        if "refused" in header_of(told):
            return told
        algorithm = query.get("algorithm", {}).get("kind", "")
        changed = change(query["question"], algorithm, load(told))
        return told if changed is None else rewritten(told, changed)

    return reply


def rewritten(told: bytes, arrays: dict[str, np.ndarray]) -> bytes:
    """The reply with other numbers, of the same types."""
    kept = {name: np.asarray(value, load(told)[name].dtype) for name, value in arrays.items()}
    return save(kept, metadata={"bidro": json.dumps(header_of(told), sort_keys=True)})


def only(question: str, algorithm: str = "", **changes) -> Change:
    """Changes the named arrays of the replies to one question (and algorithm), by functions of them."""

    def change(query, kind, arrays):
        if query != question or (algorithm and kind != algorithm):
            return None
        return {name: changes[name](value) if name in changes else value for name, value in arrays.items()}

    return change
