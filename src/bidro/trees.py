"""Frozen mappings, frozen dataclasses that JAX can trace (arrays are leaves, `static()` fields part of the
type), and code that serves both inside compiled programs and on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
V = TypeVar("V")


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


def namespace(*values: Any) -> Any:
    """`jax.numpy` where one of the values is JAX's, else `numpy`: an operation of the former on the host
    compiles a program of its own."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def static(**kwargs: Any) -> Any:
    """A dataclass field that is compiled in rather than traced; its value must be hashable."""
    return field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(field, static))
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass registered as a JAX pytree node.

    JAX rebuilds nodes with tracers and placeholders as leaves. That goes past `__init__`, so
    validation in `__post_init__` sees only what a user gave.
    """
    made = dataclass(frozen=True, eq=False)(cls)
    parts = fields(made)  # type: ignore[arg-type]
    traced = [f.name for f in parts if not f.metadata.get("static")]
    fixed = [f.name for f in parts if f.metadata.get("static")]

    def flatten(node: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        keyed = [(jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in traced]
        return keyed, tuple(getattr(node, name) for name in fixed)

    def unflatten(meta: tuple[Any, ...], leaves: Any) -> Any:
        node = object.__new__(made)
        for name, value in [*zip(traced, leaves, strict=True), *zip(fixed, meta, strict=True)]:
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made
