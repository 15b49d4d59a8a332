"""JAX, imported when something is compiled and not before: most fits have closed forms.

Modules take `jax`, `jnp` and `jit` from here, so that they can be imported where the extra `bidro[jax]` is
not installed; what then needs it says so in a sentence.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bidro.core.errors import BidroError
from bidro.core.pytrees import register_pytrees

if TYPE_CHECKING:
    import jax as jax
    import jax.flatten_util
    import jax.numpy as jnp
    from jax import Array as Array

__all__ = ["Array", "jax", "jit", "jnp"]
# Parts that are used by their name, which importing the package alone may not bring.
_PARTS = ("jax.numpy", "jax.scipy.special", "jax.custom_batching", "jax.flatten_util")
_Given = TypeVar("_Given")


@functools.cache
def _loaded() -> Any:
    """The package, with all classes of `pytree` known to it. Raises BidroError where it is not installed."""
    try:
        found = importlib.import_module("jax")
        for part in _PARTS:
            importlib.import_module(part)
    except ModuleNotFoundError as error:
        raise BidroError(
            "This needs JAX, which is not installed, as first-order methods, networks, a user's own loss and "
            "risks without a closed form do; pip install 'bidro[jax]'."
        ) from error
    register_pytrees()
    return found


class _OnUse:
    """A module whose attributes are looked up when they are used."""

    def __init__(self, *path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(functools.reduce(getattr, self._path, _loaded()), name)


if not TYPE_CHECKING:
    jax, jnp, Array = _OnUse(), _OnUse("numpy"), Any


def jit(
    function: Callable[..., _Given],
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: Any = None,
) -> Callable[..., _Given]:
    """`jax.jit` of a function, from its first call on."""

    @functools.cache
    def program() -> Any:
        return jax.jit(function, static_argnums=static_argnums, static_argnames=static_argnames)

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> _Given:
        found: _Given = program()(*args, **named)
        return found

    return called
