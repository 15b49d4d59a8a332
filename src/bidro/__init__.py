"""Train one model from several private data sources, robust to any mix of them.

The public names below are loaded on first use, so that `import bidro` and `bidro --help` stay fast.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

__version__ = "0.2.0"

# Duality gaps of 1e-8 are reported, so all arithmetic is in float64. JAX reads the variable when it
# is first imported; if the user imported it before us, its configuration is changed instead.
os.environ["JAX_ENABLE_X64"] = "true"
if "jax" in sys.modules:
    sys.modules["jax"].config.update("jax_enable_x64", True)

# Where each public name lives. The stub that type checkers read is the only list of them.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as _stub:
    _HOME = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as \2$", _stub.read(), re.M)}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bidro' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
