"""A PyTorch module as a loss that every algorithm here can train.

The module's parameters are one flat vector x. Values and both gradients, in x and in the samples, are
computed by PyTorch for a whole batch at once and called from the compiled program (`jax.pure_callback`). What
a program does not use is not called: a step in x needs no gradient in the samples, and the reverse.
Clients with models of their own are one batch, too (`torch.func.vmap`): at small sizes that is faster than a
loop over clients, and at large ones as fast.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax
from bidro.core.pytrees import namespace
from bidro.losses.custom import DeclaredLoss, name_of
from bidro.losses.fingerprints import digest_of

# `functional_call` puts parameters into the module for the time of a call, and compiled programs call from
# several threads.
_TURN = threading.Lock()

# The loss of every row (B,) from the module's output (B, ...) and the targets (B,), as PyTorch's tensors.
RowLoss = Callable[[Any, Any], Any]


def require_torch() -> Any:
    """The package. Raises BidroError that names the extra where it is missing."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise BidroError("PyTorch modules need the package torch; pip install 'bidro[torch]'.") from error


@dataclass(frozen=True, eq=False)
class TorchLoss(DeclaredLoss):
    """`loss(module(features), target)` of a sample xi = (features, target).

    The module is copied, and only parameters that require a gradient are trained. Nothing is assumed of the
    loss that is not declared, as of a `CustomLoss`.

    Args:
        module: a `torch.nn.Module`; needs the extra `torch`.
        loss: "squared" or "absolute", of one output; "cross entropy", of one output a class, the targets
            being 0, ..., classes - 1; or a function of PyTorch's tensors (outputs (B, ...), targets (B,))
            that returns the losses (B,).
        input_shape: what a row's features are reshaped to, such as (1, 28, 28); None for a vector.
        classes: how many values the target has; None for a number.
        dtype: what PyTorch computes in; x itself stays float64.
        convex: whether the loss is convex in the parameters.
        curvature_bound: of the second derivative in xi; inf for unknown.
        lipschitz_bound: of the slope in xi; inf for unknown.
        growth_order: the power with which the loss grows in xi on an unbounded support; None for unknown.
        never_negative: whether the loss is never below 0.

    Raises:
        BidroError: without PyTorch, and for a module that has nothing to train, or whose output is no
            function of (x, xi): random (dropout), or of other rows, too (batch normalisation), unless that
            part is in `eval()`.

    Examples:
        >>> import torch
        >>> from bidro import TorchLoss
        >>> TorchLoss(torch.nn.Linear(3, 1), "squared").dimension(m=4)
        4
    """

    module: Any
    loss: str | RowLoss = "squared"
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    dtype: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        torch = require_torch()
        if not isinstance(self.module, torch.nn.Module):
            raise BidroError(f"A TorchLoss needs a torch.nn.Module; got a {type(self.module).__name__}.")
        if self.dtype not in ("float64", "float32"):
            raise BidroError(f"PyTorch can compute in 'float64' or 'float32' here; got {self.dtype!r}.")
        if not callable(self.loss) and self.loss not in ("squared", "absolute", "cross entropy"):
            raise BidroError(
                "The loss of a module is 'squared', 'absolute', 'cross entropy' or a function; got "
                f"{self.loss!r}."
            )
        if self.loss == "cross entropy" and self.classes is None:
            raise BidroError("Cross entropy needs `classes`, the number of classes.")
        for name, part in self.module.named_modules():
            if part.training and isinstance(part, torch.nn.modules.batchnorm._NormBase):
                raise BidroError(
                    f"The module's part '{name}' ({type(part).__name__}) mixes rows and remembers those "
                    "that it has seen, so that the loss is no function of parameters and a row; use layer or "
                    "group normalisation, or call its eval()."
                )
        own = copy.deepcopy(self.module).to(getattr(torch, self.dtype))
        object.__setattr__(self, "module", own)
        if not self.shapes:
            raise BidroError("The module has no parameters to train.")

    def __repr__(self) -> str:
        """The same in every process: a digest of the numbers stands for them."""
        digest = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.module.state_dict().items()):
            digest.update(name.encode() + value.numpy().tobytes())
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("module", "loss")}
        loss = self.loss if isinstance(self.loss, str) else name_of(self.loss)
        return f"TorchLoss({self.module!r}, {loss}, {own}, {digest.hexdigest()})"

    @property
    def code_digest(self) -> str:
        """With what the classes of modules compute, and their settings that are no numbers of a state."""
        parts = [
            (type(part), {name: own for name, own in vars(part).items() if not name.startswith("_")})
            for part in self.module.modules()
        ]
        return digest_of((type(self), self.loss, parts))

    def __getstate__(self) -> dict[str, Any]:
        """Without the functions that are made of the module."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of what is trained, in the order of x."""
        named = self.module.named_parameters()
        return tuple((name, tuple(p.shape)) for name, p in named if p.requires_grad)

    @cached_property
    def _first(self) -> Floats:
        own = dict(self.module.named_parameters())
        parts = [own[name].detach().numpy().ravel() for name, _ in self.shapes]
        return np.concatenate(parts).astype(float)

    @property
    def labels(self) -> tuple[float, ...] | None:
        return None if self.classes is None else tuple(float(k) for k in range(self.classes))

    @property
    def scores(self) -> int:
        return self.classes or 1

    @property
    def nonnegative(self) -> bool:
        return isinstance(self.loss, str) or self.never_negative

    @property
    def host_values(self) -> bool:
        return True

    def dimension(self, m: int) -> int:
        """Raises BidroError where the module does not take rows of m - 1 features, or its output does not fit
        the loss."""
        self._try(m)
        return self._first.size

    def initial(self, m: int) -> Floats:
        return self._first

    def value(self, x: Array, xi: Array) -> Array:
        return self.values(x, xi[None])[0]

    def values(self, x: Array, rows: Array) -> Array:
        if namespace(x, rows) is np:
            return self._host_values(x, rows)  # type: ignore[return-value]
        return self._traced(x, rows)

    def mistakes(self, x: Array, rows: Array) -> Array:
        if self.classes is None:
            return super().mistakes(x, rows)
        if namespace(x, rows) is np:
            return self._host_mistakes(x, rows)  # type: ignore[return-value]
        return _call(self._host_mistakes, rows.shape[:-1], x, rows)

    def hessian_sum(self, x: Array, rows: Array, weights: Array) -> Array:
        return _call(self._host_hessian, (x.size, x.size), x, rows, weights)

    def outputs(self, x: Floats, features: Floats) -> Floats:
        """(N, outputs) what the module with parameters x (d,) gives for rows of features (N, m - 1)."""
        rows = np.column_stack([features, np.zeros(len(features))])
        with _TURN, require_torch().no_grad():
            found = self._module_at(self._tensor(x), self._tensor(rows))
            return np.asarray(found.reshape(len(features), -1).numpy(), float)

    def trained(self, x: Floats) -> Any:
        """A copy of the module with parameters x (d,)."""
        own = copy.deepcopy(self.module)
        own.load_state_dict(self._parameters(self._tensor(x)), strict=False)
        return own

    @cached_property
    def _traced(self) -> Callable[[Array, Array], Array]:
        """`values` inside a compiled program, with its derivative."""

        def values(x: Array, rows: Array) -> Array:
            return _call(self._host_values, rows.shape[:-1], x, rows)

        def forward(x: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
            return values(x, rows), (x, rows)

        def backward(at: tuple[Array, Array], weights: Array) -> tuple[Array, Array]:
            x, rows = at
            in_x = _call(self._host_slope_in_x, x.shape, x, rows, weights)
            return in_x, _call(self._host_slope_in_rows, rows.shape, x, rows, weights)

        function = jax.custom_vjp(values)
        function.defvjp(forward, backward)
        return function

    # What follows runs on the host. Arrays may have leading axes from `vmap`: as many for every argument,
    # each of the full size or of size 1.

    def _host_values(self, x: Any, rows: Any) -> Floats:
        with _TURN, require_torch().no_grad():
            return self._by_model(self._losses, x, rows)

    def _host_mistakes(self, x: Any, rows: Any) -> Floats:
        def wrong(model: Any, own: Any) -> Any:
            return (self._module_at(model, own).argmax(dim=-1) != own[:, -1].long()).to(own.dtype)

        with _TURN, require_torch().no_grad():
            return self._by_model(wrong, x, rows)

    def _host_slope_in_rows(self, x: Any, rows: Any, weights: Any) -> Floats:
        """sum_k weights_k l(x, rows_k) differentiated in the rows."""
        axes = np.broadcast_shapes(np.shape(rows)[:-1], np.shape(weights))
        m = np.shape(rows)[-1]
        both = np.concatenate(
            [np.broadcast_to(rows, (*axes, m)), np.broadcast_to(weights, axes)[..., None]], axis=-1
        )
        slope = require_torch().func.grad(self._weighted, argnums=1)
        with _TURN:
            return self._by_model(lambda model, own: slope(model, own[:, :-1], own[:, -1]), x, both)

    def _host_slope_in_x(self, x: Any, rows: Any, weights: Any) -> Floats:
        """The same differentiated in x: one gradient for every sum."""
        return self._by_sum(self._slopes_in_x, x, rows, weights)

    def _host_hessian(self, x: Any, rows: Any, weights: Any) -> Floats:
        """The second derivative in x, for every sum."""
        hessian = require_torch().func.hessian(self._weighted)
        return self._by_sum(lambda *given: _over_models(hessian, *given), x, rows, weights)

    def _by_model(self, function: Callable[[Any, Any], Any], x: Any, rows: Any) -> Floats:
        """A function of one model (d,) and rows (B, m) of it, for all of them: axes along which x does not
        change are axes of rows of one model."""
        x, rows = np.asarray(x), np.asarray(rows)
        own = x.ndim - 1
        while own > 0 and x.shape[own - 1] == 1:
            own -= 1
        axes = np.broadcast_shapes(x.shape[:own], rows.shape[:own])
        models = np.broadcast_to(x.reshape(*x.shape[:own], -1), (*axes, x.shape[-1]))
        spread = np.broadcast_to(rows, (*axes, *rows.shape[own:]))
        count = math.prod(axes)
        own_rows = self._tensor(spread).reshape(count, -1, rows.shape[-1])
        by_model = _over_models(function, self._tensor(models).reshape(count, -1), own_rows)
        found = np.asarray(by_model.detach().numpy(), float)
        return found.reshape(*spread.shape[:-1], *found.shape[2:])

    def _by_sum(self, function: Callable[..., Any], x: Any, rows: Any, weights: Any) -> Floats:
        """A function of models (S, d), rows (S, B, m) and weights (S, B), for all sums S along their axes."""
        given = [np.asarray(one) for one in (x, rows, weights)]
        kept = (1, 2, 1)
        axes = np.broadcast_shapes(*(v.shape[: v.ndim - k] for v, k in zip(given, kept, strict=True)))
        tensors = [
            self._tensor(np.broadcast_to(v, axes + v.shape[v.ndim - k :])).reshape(-1, *v.shape[v.ndim - k :])
            for v, k in zip(given, kept, strict=True)
        ]
        with _TURN:
            found = np.asarray(function(*tensors).detach().numpy(), float)
        return found.reshape(*axes, *found.shape[1:])

    def _slopes_in_x(self, x: Any, rows: Any, weights: Any) -> Any:
        """(S, d) of every sum in its own model. The sums are added up and differentiated at once by PyTorch's
        own backward pass, which is faster than the same pass model by model under `vmap`."""
        torch = require_torch()
        with torch.enable_grad():
            total = _over_models(self._weighted, x.requires_grad_(), rows, weights).sum()
            if not total.requires_grad:
                return torch.zeros_like(x)
            return torch.autograd.grad(total, x)[0]

    def _weighted(self, x: Any, rows: Any, weights: Any) -> Any:
        return (self._losses(x, rows) * weights).sum()

    def _losses(self, x: Any, rows: Any) -> Any:
        """(B,) as tensors, of one model (d,) and rows (B, m)."""
        output, target = self._module_at(x, rows), rows[:, -1]
        if callable(self.loss):
            found = self.loss(output, target)
            if found.shape != target.shape:
                raise ValueError(f"the loss of {len(target)} rows has shape {tuple(found.shape)}")
            return found
        if self.loss == "cross entropy":
            log = require_torch().nn.functional.log_softmax(output, dim=-1)
            return -log.gather(1, target.detach().long()[:, None])[:, 0]
        residual = output.reshape(len(target)) - target
        return residual.abs() if self.loss == "absolute" else residual**2

    def _module_at(self, x: Any, rows: Any) -> Any:
        features = rows[:, :-1]
        if self.input_shape is not None:
            features = features.reshape(rows.shape[0], *self.input_shape)
        return require_torch().func.functional_call(self.module, self._parameters(x), (features,))

    def _parameters(self, x: Any) -> dict[str, Any]:
        found, begin = {}, 0
        for name, shape in self.shapes:
            end = begin + math.prod(shape)
            found[name], begin = x[begin:end].reshape(shape), end
        return found

    def _tensor(self, values: Any) -> Any:
        # A copy: PyTorch would share the array, and may not write to what is JAX's.
        return require_torch().from_numpy(np.array(values, self.dtype))

    def _try(self, m: int) -> None:
        """A few rows of some numbers, for the shape of what comes out; once for every m."""
        if m in self._tried:
            return
        features = np.random.default_rng(0).normal(size=(16, m - 1))
        rows = np.column_stack([features, np.zeros(16)])
        try:
            found, again = (self._host_values(self._first, rows) for _ in range(2))
            width = self.outputs(self._first, features).shape[1]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shape = (m - 1,) if self.input_shape is None else self.input_shape
            raise BidroError(
                f"The module and its loss do not take rows of {m - 1} features as inputs of shape {shape}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        if self.loss == "cross entropy" and width != self.classes:
            raise BidroError(f"The module has {width} outputs for {self.classes} classes; they must agree.")
        if not np.array_equal(found, again, equal_nan=True):
            raise BidroError(
                "The module's output is random (dropout?), so that it is no function of parameters and "
                "features; leave that part out, or call its eval()."
            )
        self._tried.add(m)

    @cached_property
    def _tried(self) -> set[int]:
        return set()


def _call(function: Callable[..., Floats], shape: tuple[int, ...], *arguments: Array) -> Array:
    """A function of the host inside a compiled program."""

    kind = jax.ShapeDtypeStruct(shape, np.dtype(float))  # type: ignore[no-untyped-call]
    return jax.pure_callback(function, kind, *arguments, vmap_method="expand_dims")


def _over_models(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function of one model, for models along a leading axis of every argument; as a tensor."""
    if len(arguments[0]) == 1:
        return function(*(one[0] for one in arguments))[None]
    return require_torch().func.vmap(function)(*arguments)
