"""Frozen mappings, frozen dataclasses that JAX can trace (arrays are leaves, `static()` fields part of the
type), what code needs that runs both inside compiled programs and on the host, and the cache of compiled
programs.

Nothing here imports JAX: arrays that JAX traces are met only where somebody has imported it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import numpy as np

T = TypeVar("T")
V = TypeVar("V")

# Classes that JAX is to know, by the names of their traced and of their static fields.
_Parts = tuple[list[str], list[str]]
_PYTREES: dict[type, _Parts] = {}
_UNREGISTERED: list[type] = []


class Frozen(Mapping[str, V]):
    """A mapping that cannot be changed, and unlike `MappingProxyType` can be pickled."""

    def __init__(self, content: Mapping[str, V]) -> None:
        self._content = dict(content)

    def __getitem__(self, key: str) -> V:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return repr(self._content)


def loaded_jax() -> Any:
    """The package JAX if this process has imported it, else None: then no array can be JAX's."""
    jax = sys.modules.get("jax")
    # While the package is being imported it has no arrays yet.
    return jax if hasattr(jax, "Array") else None


_OF_NUMPY = (np.ndarray, np.generic, float, int)


def namespace(*values: Any) -> Any:
    """`jax.numpy` where one of the values is JAX's, else `numpy`: an operation of the former on the host
    compiles a program of its own."""
    # What is NumPy's is known at once; asking whether something is JAX's takes long.
    others = [value for value in values if not isinstance(value, _OF_NUMPY)]
    jax = loaded_jax() if others else None
    return jax.numpy if jax is not None and any(isinstance(value, jax.Array) for value in others) else np


def repeat_while(goes_on: Callable[[T], Any], step: Callable[[T], T], start: T) -> T:
    """`step` again and again while `goes_on`, from an array or a tuple of arrays; traced if one is JAX's."""
    if namespace(*(start if isinstance(start, tuple) else (start,))) is not np:
        repeated: T = loaded_jax().lax.while_loop(goes_on, step, start)
        return repeated
    while goes_on(start):
        start = step(start)
    return start


def static(**kwargs: Any) -> Any:
    """A dataclass field that is compiled in rather than traced; its value must be hashable.

    Args:
        Those of `dataclasses.field`, such as `default`.

    Returns:
        What `dataclasses.field` returns, marked for `pytree`.

    Raises:
        TypeError: for what `dataclasses.field` does not know.

    Examples:
        >>> from bidro import pytree, static
        >>> @pytree
        ... class Steps:
        ...     size: float = 0.1
        ...     rule: str = static(default="sqrt")
        >>> Steps().rule
        'sqrt'
    """
    return field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(field, static))
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass that JAX knows as a pytree node: at once where this process has imported
    JAX, else from `register_pytrees` on. It is what an own algorithm is decorated with.

    JAX rebuilds nodes with tracers and placeholders as leaves. That goes past `__init__`, so
    validation in `__post_init__` sees only what a user gave.

    Args:
        cls: a class with annotated fields, as for `dataclasses.dataclass`. Fields are traced: numbers, arrays
            and other pytrees; those made by `static` are part of the type.

    Returns:
        The class.

    Raises:
        ValueError: for a class that is one already.

    Examples:
        >>> import jax
        >>> from bidro import pytree
        >>> @pytree
        ... class Line:
        ...     slope: float
        ...     offset: float = 0.0
        >>> jax.tree.map(lambda v: 2 * v, Line(1.0, 3.0))
        Line(slope=2.0, offset=6.0)
    """
    made = dataclass(frozen=True, eq=False)(cls)
    parts = fields(made)  # type: ignore[arg-type]
    _PYTREES[made] = (
        [f.name for f in parts if not f.metadata.get("static")],
        [f.name for f in parts if f.metadata.get("static")],
    )
    _UNREGISTERED.append(made)
    if loaded_jax() is not None:
        register_pytrees()
    return made


def register_pytrees() -> None:
    """Make all classes of `pytree` known to JAX, which is imported: `core.jax_on_use` calls it."""
    while _UNREGISTERED:
        _register(_UNREGISTERED.pop())


def _register(cls: type) -> None:
    tree_util = sys.modules["jax"].tree_util
    traced, fixed = _PYTREES[cls]

    def flatten(node: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        keyed = [(tree_util.GetAttrKey(name), getattr(node, name)) for name in traced]
        return keyed, tuple(getattr(node, name) for name in fixed)

    def unflatten(meta: tuple[Any, ...], leaves: Any) -> Any:
        return _rebuilt(cls, leaves, meta)

    tree_util.register_pytree_with_keys(cls, flatten, unflatten)


def _rebuilt(cls: type, leaves: Iterable[Any], meta: Iterable[Any]) -> Any:
    node: Any = object.__new__(cls)
    traced, fixed = _PYTREES[cls]
    for name, value in [*zip(traced, leaves, strict=True), *zip(fixed, meta, strict=True)]:
        object.__setattr__(node, name, value)
    return node


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """A function of the leaves that stand in the same place in all of the trees, as a tree like them: of
    tuples, lists, dictionaries, `pytree` classes and None."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, tuple | list):
        parts = [mapped(function, *own) for own in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, dict):
        return {key: mapped(function, *(tree[key] for tree in trees)) for key in first}
    if type(first) in _PYTREES:
        traced, fixed = _PYTREES[type(first)]
        leaves = [mapped(function, *(getattr(tree, name) for tree in trees)) for name in traced]
        return _rebuilt(type(first), leaves, [getattr(first, name) for name in fixed])
    return function(*trees)


def stack_trees(trees: Iterable[T]) -> T:
    """One tree with a leading axis, from trees of arrays of the same shapes."""
    stacked: T = mapped(lambda *leaves: np.stack(leaves), *trees)
    return stacked


def structured(node: Any) -> tuple[list[Any], str]:
    """(leaves, structure) of a tree of tuples, `pytree` classes and None: the leaves in order, and in words
    what holds them, with the static fields, as JAX's `tree.flatten` has them."""
    leaves: list[Any] = []
    return leaves, f"PyTreeDef({_structure(node, leaves)})"


def _structure(node: Any, leaves: list[Any]) -> str:
    if node is None:
        return "None"
    if isinstance(node, tuple):
        parts = [_structure(part, leaves) for part in node]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if type(node) in _PYTREES:
        traced, fixed = _PYTREES[type(node)]
        inside = ", ".join(_structure(getattr(node, name), leaves) for name in traced)
        return f"CustomNode({type(node).__name__}[{tuple(getattr(node, n) for n in fixed)}], [{inside}])"
    leaves.append(node)
    return "*"


@cache
def compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, so that the next run need not compile them.

    JAX's own variable takes precedence; where the folder cannot be made, runs are only slower.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "bidro" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    jax = loaded_jax()
    for name, value in settings.items():
        if jax is None:
            # What JAX reads when it is imported.
            os.environ[name.upper()] = str(value)
        else:
            jax.config.update(name, value)


def forget_programs() -> None:
    """Give back the memory of all programs that this process has compiled."""
    if (jax := loaded_jax()) is not None:
        jax.clear_caches()
