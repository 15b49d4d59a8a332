"""`RobustNetRegressor` and `RobustNetClassifier`: networks that hold up under any mix of the clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from bidro.ambiguity import Penalty
from bidro.certify.statements import NOT_TRAINED_HERE
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.sets import WholeSpace
from bidro.core.splits import choose_holdout
from bidro.data.federation import Federation
from bidro.data.given_rows import by_client, classes_and_codes, client_labels
from bidro.data.standardise import Standard
from bidro.federated.algorithm import Algorithm
from bidro.federated.algorithms import Adam, BiDROLocal, ServerOptimised
from bidro.federated.baselines import AFL
from bidro.neural.folder import LoadedNetwork, save_network
from bidro.neural.models import from_factory, loss_of, outputs_of, trained_network
from bidro.neural.shift import shift_estimate
from bidro.neural.training import train_network
from bidro.problem.problem import Problem
from bidro.risk.inner import FixedStepAscent
from bidro.risk.transport import Transport
from bidro.workflow.certify import certify_model


@dataclass(eq=False, repr=False, kw_only=True)
class RobustNet(BaseEstimator):  # type: ignore[misc]
    """See `RobustNetRegressor` and `RobustNetClassifier`, which declare the network and the loss."""

    algorithm: Algorithm | None = None
    penalty: float | None = None
    rounds: int = 500
    holdout: float = 0.2
    validation: float = 0.1
    evaluate_every: int = 10
    patience: int | None = 10
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float64"
    confidence: float = 0.95
    checkpoint: str | None = None
    verbose: bool = False
    random_state: int = 0

    def _encode(self, y: Any) -> Floats:
        raise NotImplementedError

    @property
    def _classes(self) -> int | None:
        raise NotImplementedError

    def fit(self, X: Any, y: Any, clients: ArrayLike | None = None) -> Self:
        """Train on the rows of all clients, but for those held out.

        Args:
            X: rows (N, k) of numbers.
            y: their targets (N,).
            clients: whose row each is (N,); without it all rows are one client's.

        Returns:
            The estimator itself.

        Raises:
            ValueError: for rows and settings that cannot be used.
        """
        for name, share in (("holdout", self.holdout), ("validation", self.validation)):
            if not isinstance(share, int | float) or not 0 < share < 0.5:
                raise BidroError(f"The share `{name}` must be above 0 and below 0.5; got {share!r}.")
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2, y_numeric=False)
        target = self._encode(y)
        owners = client_labels(clients, len(target))
        kept = choose_holdout(owners, X, target, self.holdout, self.random_state)
        watched = np.zeros(len(target), bool)
        # Another seed: the same random numbers would watch the rows that were nearly held out.
        share, key = self.validation / (1 - self.holdout), self.random_state + 1
        watched[~kept] = choose_holdout(owners[~kept], X[~kept], target[~kept], share, key)
        trained = ~kept & ~watched
        rows = np.column_stack([X, target])

        self._network = from_factory(self.module) if isinstance(self.module, str) else self.module
        self._loss = loss_of(self._network, self.loss, self.input_shape, self._classes, self.dtype)
        m = rows.shape[1]
        problem = Problem(
            Federation.from_arrays(by_client(owners[trained], rows[trained]), "unbounded"),
            self._loss,
            WholeSpace(self._loss.dimension(m)),
            Transport.features_only(m) if self._classes is None else Transport.classification(m),
            None if self.penalty is None else Penalty(self.penalty),
        )
        found = train_network(
            default_algorithm(self.penalty) if self.algorithm is None else self.algorithm,
            problem,
            self.rounds,
            self.random_state,
            by_client(owners[watched], rows[watched]),
            self.evaluate_every,
            self.patience,
            self.checkpoint,
            self.verbose,
        )
        self.model_, self.n_rounds_, self.evaluations_ = found.x, found.round, found.evaluations
        self.n_iter_ = found.result.rounds
        names = problem.federation.names
        self.client_weights_ = dict(zip(names, found.result.alpha.tolist(), strict=True))
        self.shift_estimate_ = None
        if self.penalty is not None:
            self.shift_estimate_ = shift_estimate(problem, found.x, by_client(owners[kept], rows[kept]))
        stated = certify_model(
            self,
            X[kept],
            y[kept],
            owners[kept],
            confidence=self.confidence,
            clip_from=(X[watched], y[watched]) if self._classes is None else None,
        )
        self.certificate_ = replace(stated, balls=stated.balls.removeprefix(NOT_TRAINED_HERE).strip())
        return self

    @property
    def module_(self) -> Any:
        """The trained PyTorch module, or the trained parameters of a JAX function."""
        check_is_fitted(self)
        return trained_network(self._loss, self.model_)

    def _outputs(self, X: Any) -> Floats:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return outputs_of(self._network, self._loss, self.model_, X, self.input_shape)

    def save(self, folder: Path | str) -> None:
        """Write the weights and what they belong to, and an ONNX file where there can be one.

        Args:
            folder: where to; it is made, or its files are replaced.

        Raises:
            BidroError: where `module` is not the name of a factory, or the folder cannot be written.
        """
        check_is_fitted(self)
        if not isinstance(self.module, str):
            raise BidroError(
                "A network is saved as weights and the name of the factory that makes it; give the estimator "
                "`module='package.module:function'`."
            )
        about = LoadedNetwork(
            {},
            self.module,
            self.input_shape,
            tuple(str(one) for one in getattr(self, "classes_", ())) or None,
            Standard.as_they_are(self.n_features_in_),
        )
        save_network(Path(folder), self._loss, self.model_, about, self.certificate_)


@dataclass(eq=False, repr=False)
class RobustNetRegressor(RegressorMixin, RobustNet):  # type: ignore[misc]
    """A network of one output, trained against the worst mixture of the clients' losses.

    Features and targets are used as they are: scale them before.

    Args:
        module: a torch.nn.Module, a `JaxNetwork`, or "package.module:function", a function that returns one.
        loss: "squared", "absolute", or for a module a function of tensors (outputs, targets) -> losses.
        algorithm: any of this package; by default AFL's steps over batches of 32 rows with Adam at the
            server, or, with a `penalty`, BiDRO-FL's.
        penalty: rho, the price of moving a row's features by 1 (squared) in training: the smaller, the more
            shift the model is trained against; None for none.
        rounds: at the most.
        holdout: the share of every client's rows for the certificate.
        validation: the share for early stopping, by the mean loss of the worst fifth of the clients.
        evaluate_every: rounds between two looks at these.
        patience: looks without a better one after which training stops; None for never.
        input_shape: of a row's features; None for a vector.
        dtype: "float64" or "float32", for a PyTorch module.
        confidence: of `certificate_`.
        checkpoint: a file from which a cut `fit` goes on.
        verbose: whether progress is shown.
        random_state: seed of the splits and of training.

    Attributes:
        model_: (d,) the parameters, flat.
        module_: the trained network.
        n_rounds_: after which model_ was the model.
        n_iter_: rounds in all.
        evaluations_: on the validation rows.
        client_weights_: those that training ended with, by client.
        certificate_: from the held-out rows; losses are clipped at the largest on the validation rows.
        shift_estimate_: with a penalty; an estimate by ascent, not a bound.

    Raises:
        BidroError: from `fit`, for rows and settings that cannot be used.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from bidro import JaxNetwork, RobustNetRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(200, 2)), np.repeat(["north", "south"], 100)
        >>> network = JaxNetwork(lambda w, row: w @ row, jnp.zeros(2))
        >>> model = RobustNetRegressor(network, rounds=300).fit(X, X @ [0.5, -1.0], clients=site)
        >>> bool(model.score(X, X @ [0.5, -1.0]) > 0.9)
        True
    """

    module: Any
    loss: Any = "squared"

    @property
    def _classes(self) -> int | None:
        return None

    def _encode(self, y: Any) -> Floats:
        return np.asarray(column_or_1d(y, warn=True), float)

    def predict(self, X: ArrayLike) -> Floats:
        """The number that the network predicts for every row.

        Args:
            X: rows (N, k).

        Returns:
            Predictions (N,).
        """
        return self._outputs(X)[:, 0]


@dataclass(eq=False, repr=False)
class RobustNetClassifier(ClassifierMixin, RobustNet):  # type: ignore[misc]
    """The classifier: a network with one output a class, in the order of `classes_` (sorted).

    The other parameters, and what is there after `fit`, are those of `RobustNetRegressor`; the certificate is
    of mistakes.

    Args:
        module: with one output a class.
        loss: "cross entropy", or for a module a function of tensors.

    Raises:
        BidroError: from `fit`, for rows and settings that cannot be used.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from bidro import JaxNetwork, RobustNetClassifier
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(200, 2)), np.repeat(["north", "south"], 100)
        >>> network = JaxNetwork(lambda w, row: w @ row, jnp.zeros((2, 2)))
        >>> model = RobustNetClassifier(network, rounds=100).fit(X, X[:, 0] > 0, clients=site)
        >>> bool(model.score(X, X[:, 0] > 0) > 0.9)
        True
    """

    module: Any
    loss: Any = "cross entropy"

    @property
    def _classes(self) -> int | None:
        return len(self.classes_)

    def _encode(self, y: Any) -> Floats:
        self.classes_, codes = classes_and_codes(y)
        return codes.astype(float)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """The probability of every class.

        Args:
            X: rows (N, k).

        Returns:
            Probabilities (N, classes), in the order of `classes_`.
        """
        return np.asarray(softmax(self._outputs(X), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class of every row.

        Args:
            X: rows (N, k).

        Returns:
            Classes (N,).
        """
        return np.asarray(self.classes_[self._outputs(X).argmax(axis=1)])


def default_algorithm(penalty: float | None) -> Algorithm:
    """What is trained by unless another algorithm is given: Adam's steps do not depend on how large the
    gradients of a network are."""
    if penalty is None:
        return ServerOptimised(AFL(eta_x=1.0, eta_alpha=0.01, batch=32), Adam(0.005))
    ascent = FixedStepAscent(steps=10, step_size=0.25 / penalty, perturbation=0.0)
    own = BiDROLocal(eta_x=1.0, eta_alpha=0.01, local_steps=1, oracle=ascent, batch=32)
    return ServerOptimised(own, Adam(0.005))
