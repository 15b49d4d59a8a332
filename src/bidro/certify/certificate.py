"""`Certificate`: all that is stated about one model, as one immutable object that can be kept and shown.

Three statements, each with the sentence that says what it promises, or why it is absent:
- the interval of the out-of-sample theorem (any shift within explicit radii, sampling error, any mixture);
- the held-out bound (sampling error, any mixture; no shift inside a client): of the mean loss, where the
  support bounds it; of the mean loss with each loss counted as at most a level known from training,
  which is far tighter where the support is wide; and for classes of the share of mistakes;
- a held-out bound with room for a chosen shift inside every client.
All of them are about the shared model. Where clients have personal models, the held-out bounds are also
stated with each client using its personal one.
What leads is a statement about rows (`RowPromise`): how far nearly all of them lie from their prediction, or
how many are mistaken, also where some clients have too few rows for a bound of their own.
Of a model that was not trained here there are only the held-out statements and, where another model
predicted the same rows, a bound of the difference of the two.
Where clients have privacy budgets, `privacy` says by which the model and all of this are private.
A held-out bound that says nothing is marked `vacuous`, and shown as too few rows, never as a result.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bidro.certify.held_out import HeldOut, OverRows, Paired
from bidro.certify.out_of_sample import Interval
from bidro.certify.row_promise import RowPromise
from bidro.core.errors import BidroError, listed
from bidro.core.files import parsed_json, renamed
from bidro.core.pytrees import Frozen

FORMAT, VERSION = "bidro certificate", 3
# Said wherever the clients' bounds are listed.
EACH_BY_ITSELF = "The clients' bounds have this confidence each by itself, not all together."
_Bound = TypeVar("_Bound", HeldOut, Paired)
_MOST_NAMED = 5
TO_TRY = (
    "To try out, not private: the units that rows are put into were drafted from rows, so that one row far "
    "out moves them and all that follows. Write units that are known from elsewhere into schema.toml, take "
    "its line units_drafted out and use that; then budgets are promised."
)


class Shared(NamedTuple):
    """Of a run in which sites share their noise."""

    honest: int  # as long as so many clients, one's own among them, keep their noise to themselves
    sites: int  # of so many
    epsilon: float  # this run costs so much
    alone: float  # and so much whatever all others do
    delta: float


class OnAverage(NamedTuple):
    """What the held-out rows of all clients say together, with this confidence each: over rows that come from
    the clients as often as these did."""

    confidence: float
    bound: float  # of the mean loss
    largest: float  # as which larger losses count
    mistakes: float | None  # bound of the share of wrong predictions, of classes


@dataclass(frozen=True)
class Privacy:
    """The differential privacy of all that left the clients in a run."""

    budgets: Mapping[str, tuple[float, float, int] | None]  # by client: epsilon, delta, rows a person
    excess: float  # the share by which the mean loss in training rises if noisy sums show rows as they are
    kept: bool  # whether every client keeps account of all runs, and not of this one alone
    people: bool = False  # whether rows are of people or things that have several, and not each of its own
    exact: tuple[str, ...] = ()  # clients that exact sums over rows have left in other runs, by no budget
    drafted: bool = False  # whether the units that rows were put into were read off rows
    shared: Shared | None = None  # None where each client adds all the noise that its own sums need
    on_average: OnAverage | None = None  # None where no rows are held out

    def __post_init__(self) -> None:
        object.__setattr__(self, "budgets", Frozen(self.budgets))
        object.__setattr__(self, "exact", tuple(self.exact))
        if self.shared is not None:
            object.__setattr__(self, "shared", Shared(*self.shared))
        if self.on_average is not None:
            object.__setattr__(self, "on_average", OnAverage(*self.on_average))

    @classmethod
    def restored(cls, content: Mapping[str, Any]) -> Privacy:
        """From JSON. Raises ValueError, TypeError or KeyError for what is none."""
        part = renamed(content)
        # Earlier certificates have "units" in place of "people".
        said = part.pop("promise").replace("one unit, of which at most", "one person, of whom at most")
        budgets = {
            str(name): None if one is None else (float(one[0]), float(one[1]), int(one[2]))
            for name, one in part.pop("budgets").items()
        }
        found = cls(budgets, **part)
        if not set(found.exact) <= set(budgets) or type(found.drafted) is not bool:
            raise ValueError("what is said of clients or people is not of these")
        if found.promise != said:
            raise ValueError("what is promised is not what the budgets say")
        return found

    @property
    def promise(self) -> str:
        """Whom the privacy guarantee covers, with which epsilon and delta, and its assumptions."""
        if self.drafted:
            return TO_TRY
        lines = []
        for (budget, exact), names in self._together().items():
            if budget is not None:
                lines.append(self._budget(budget, names, exact))
        if self.shared is not None:
            lines.append(self._relies_on(self.shared))
        bare = [name for name, budget in self.budgets.items() if budget is None]
        if bare:
            lines.append(f"Nothing is promised to the people at {_named(bare)}, which has no budget.")
        lines.append(
            "It assumes that all rows of a person are at one client; who has rows at several is covered by "
            "the sums of their epsilons and deltas."
        )
        lines.append(
            f"Each client keeps account of all that it releases{' with noise' * bool(self.exact)}, in every "
            "run together."
            if self.kept
            else "It counts this run alone: another on the same rows costs as much again."
        )
        return " ".join(lines)

    def _budget(self, budget: tuple[float, float, int], names: list[str], exact: bool) -> str:
        epsilon, delta, rows = budget
        here = _named(names)
        left = f"What left {here} in private runs" if exact else f"All that left {here}"
        besides = (
            f" Exact sums over rows have left {here} in other runs, which had no budget: of these nothing is "
            "promised."
        )
        whose = f"one person, of whom at most {rows} row{'s' * (rows > 1)} count" if self.people else "a row"
        return (
            f"{left}, and so this model and all that is stated of it, is differentially private with "
            f"epsilon = {epsilon:g} and delta = {delta:g}, for adding or removing "
            f"{whose}{', by noise that is shared' * (self.shared is not None)}.{besides * exact}"
        )

    def _relies_on(self, shared: Shared) -> str:
        return (
            f"Noise is shared: this run costs epsilon = {shared.epsilon:g} as long as {shared.honest} of the "
            f"{shared.sites} clients, a person's own among them, keep their shares of it to themselves, and "
            f"epsilon = {shared.alone:.3g}, with delta = {shared.delta:g}, whatever all others do."
        )

    @property
    def average(self) -> str:
        """The bound over the rows of all clients together: noise that hides a small client's losses does not
        hide the sum of all."""
        if (said := self.on_average) is None:
            return "Without held-out rows nothing bounds the mean loss."
        what = "people" if self.people else "rows"
        wrong = "" if said.mistakes is None else f", and of mistakes at most {said.mistakes:.1%}"
        return (
            f"Over {what} that come from the clients as often as the held-out ones did, the mean loss is at "
            f"most {said.bound:.4g}, losses above {said.largest:.4g} counting as that{wrong}, each with "
            f"{said.confidence:.0%} confidence."
        )

    def _together(self) -> dict[tuple[tuple[float, float, int] | None, bool], list[str]]:
        """Clients by what their budget is, and by whether exact sums have left them."""
        found: dict[tuple[tuple[float, float, int] | None, bool], list[str]] = {}
        for name, budget in self.budgets.items():
            found.setdefault((budget, name in self.exact), []).append(name)
        return found

    @property
    def cost(self) -> str:
        """The estimated cost of the noise. It is not an upper bound: what the noise hides may explain all
        of a target."""
        return (
            "If rows are as the noisy sums show them, noise and clipping raise the mean loss in training by "
            f"about {self.excess:.1%}. That is no upper end, and none is known: where a feature nearly "
            "follows from others, few rows have a level, or rows lie far out, it can be many times as much; "
            "held-out rows bound the loss. Numbers of rows and losses of clients are "
            "shown with the noise that they were released with."
        )


def of_procedure(share: float) -> str:
    """What a certificate is of, where the model was trained again on all rows."""
    return (
        f"What held-out rows promise is of the procedure, trained on {share:.0%} of the rows: the model here "
        "was trained on all of them afterwards, by the same settings, and there is no theorem for it."
    )


def _named(names: list[str]) -> str:
    return listed([f"'{name}'" for name in names], _MOST_NAMED)


@dataclass(frozen=True)
class Shift:
    """The clipped held-out bound if every client's distribution moves by at most `radius` in W_p after the
    rows were drawn."""

    radius: float
    bound: float
    promise: str


@dataclass(frozen=True)
class Certificate:
    """See the module's docstring. Clients are in the order of `names`.

    Examples:
        >>> from bidro import Certificate, certify_predictions
        >>> stated = certify_predictions([0, 1] * 50, [0, 1] * 49 + [1, 1], loss="mistakes")
        >>> Certificate.from_json(stated.to_json()).mistakes.bound == stated.mistakes.bound
        True
    """

    confidence: float  # of each statement by itself
    names: tuple[str, ...]  # the clients'
    rows: tuple[int, ...]  # of training, that the interval rests on; () for a model not trained here
    empirical: tuple[float, ...]  # mean losses on these rows; () for a model not trained here
    mixtures: str  # the admissible ones, in words
    interval: Interval | None  # of the out-of-sample theorem
    held_out: HeldOut | None  # on losses as they are, where a declared support bounds them
    clipped: HeldOut | None  # losses counted as at most a level known from training
    mistakes: HeldOut | None  # the share of wrong predictions, for losses with labels
    shift: Shift | None  # with room for shift inside the clients
    absent: Mapping[str, str]  # why a statement is not made, by its name
    balls: str  # what the radii of training stand for; of a model not trained here, what bounds its loss
    weights: tuple[float, ...] | None = None  # in the worst mixture of training; None where it is not known
    personal: HeldOut | None = None  # as `clipped`, each client with its personal model, where it has one
    personal_mistakes: HeldOut | None = None  # as `mistakes`, each client with its personal model
    against: Paired | None = None  # the difference from another model, where one was given
    privacy: Privacy | None = None  # what is promised to the people in the rows, where clients have budgets
    of_rows: RowPromise | None = None  # how far rows lie from predictions, or how many are mistaken
    procedure: float | None = None  # share of rows trained on before the model was trained again on all

    @property
    def trained(self) -> bool:
        """Whether the model was trained here, so that its training rows are known."""
        return len(self.rows) > 0

    @property
    def fresh(self) -> HeldOut | None:
        """The statement from fresh rows that a client's line is about; None where there are no such rows."""
        return self.clipped or self.held_out or self.mistakes

    @property
    def counts_most(self) -> tuple[str, ...]:
        """The clients of the largest weight in the worst mixture of training; none where it is not known."""
        if self.weights is None:
            return ()
        # The solver's weights are equal only to a tolerance.
        largest = max(self.weights) - 1e-6
        return tuple(name for name, own in zip(self.names, self.weights, strict=True) if own >= largest)

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, unit: str = "") -> str:
        """A text table, a line a statement and a line a client.

        Args:
            unit: the target's, such as "days"; "" where it has none.

        Returns:
            The table.
        """
        return _table(self, unit)

    def to_json(self) -> str:
        content = {"format": FORMAT, "version": VERSION, **_plain(self)}
        if self.against is None:
            # Left out where there is no other model, as in certificates of before comparisons.
            del content["against"]
        if self.privacy is None:
            del content["privacy"]
        else:
            for name in ("shared", "on_average"):
                if content["privacy"][name] is None:
                    del content["privacy"][name]
        for name in ("of_rows", "procedure"):
            if content[name] is None:
                del content[name]
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """A certificate from what `to_json` gave.

        Args:
            text: that of `certificate.json`.

        Returns:
            The certificate.

        Raises:
            BidroError: for text that is no certificate of this version.
        """
        try:
            content = parsed_json(text)
        except ValueError as error:
            raise BidroError(f"This is not a certificate: it cannot be read as JSON ({error}).") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise BidroError(f"This is not a certificate: there is no format '{FORMAT}' in it.")
        if (version := content.pop("version", None)) != VERSION:
            raise BidroError(f"This certificate is of version {version}; this program reads {VERSION}.")
        return _restored(content)


def _table(found: Certificate, unit: str) -> str:
    lines = [f"Certificate at confidence {found.confidence:g}, for {found.mixtures}"]
    if found.procedure is not None:
        lines.append(f"  {of_procedure(found.procedure)}")
    if found.of_rows is not None:
        lines.append(f"  {'Rows':<12} {found.of_rows.in_words(unit)}")
    statements = {
        "Wasserstein": ("interval", found.interval and _interval_line(found.interval)),
        "Held out": ("held_out", found.held_out and _held_out_line(found.held_out)),
        "Clipped": ("clipped", found.clipped and _held_out_line(found.clipped)),
        "With shift": ("shift", found.shift and _shift_line(found.shift)),
    }
    for title, (name, line) in statements.items():
        lines.append(f"  {title:<12} {line or 'absent: ' + found.absent[name]}")
    if found.mistakes is not None:
        lines.append(f"  {'Mistakes':<12} {_mistakes_line(found.mistakes)}")
    if found.against is not None:
        lines.append(f"  {'Against':<12} {found.against.verdict}")
    if found.personal is not None:
        lines.append(
            f"  {'Personal':<12} {_held_out_line(found.personal)}, every client using its personal model"
        )
    if found.personal_mistakes is not None:
        lines.append(f"  {'':<12} {_mistakes_line(found.personal_mistakes)} wrong")
    columns = _columns(found)
    lines.append(f"  {'client':<16}" + "".join(f" {title:>13}" for title in columns))
    for i, name in enumerate(found.names):
        line = f"  {name[:16]:<16}" + "".join(f" {values[i]:>13}" for values in columns.values())
        lines.append(line + (" *" if name in found.counts_most else ""))
    if found.fresh is not None and found.fresh.each_by_itself:
        lines.append(f"  {EACH_BY_ITSELF}")
    if found.counts_most:
        lines.append("  * counts most in the mixture that training ended with")
    if found.interval is not None:
        lines.append(f"  {found.interval.advice}")
    if not found.trained:
        lines.append(f"  {found.balls}")
    if found.privacy is not None:
        lines += [f"  {found.privacy.promise}", f"  {found.privacy.average}", f"  {found.privacy.cost}"]
    return "\n".join(lines)


def _columns(found: Certificate) -> dict[str, list[str]]:
    """The columns of the clients' lines by title: of fresh rows where there are some, else of training rows,
    never both; and the interval's parts."""
    if (held := found.fresh) is None:
        columns = {
            "trained on": [f"{rows:,}" for rows in found.rows],
            "training loss": [f"{loss:.4g}" for loss in found.empirical],
        }
    else:
        columns = {f"fresh {held.draws}": [f"{held.rows[name]:,}" for name in found.names]}
        if held.means:
            title = "mistakes" if held.mistakes else "counted loss" if held.clipped else "mean loss"
            columns[title] = [f"{held.means[name]:.4g}" for name in found.names]
        if held.over_rows is not None:
            columns["mean of rows"] = [f"{held.over_rows.means[name]:.4g}" for name in found.names]
        if (rows := found.of_rows) is not None and rows.share is not None:
            columns[f"{rows.share:.0%} within"] = [
                f"{rows.clients[name]:.4g}" if name in rows.clients else "too few" for name in found.names
            ]
        columns["at most"] = [
            "too few" if name in held.vacuous_clients else f"{held.clients[name]:.4g}" for name in found.names
        ]
    if (pair := found.against) is not None:
        columns["difference"] = [f"{pair.means[name]:+.4g}" for name in found.names]
        columns["its bound"] = [f"{pair.clients[name]:+.4g}" for name in found.names]
    if found.interval is not None:
        columns["radius"] = [f"{radius:.4g}" for radius in found.interval.radii]
        columns["robust"] = [f"{risk:.4g}" for risk in found.interval.risks]
    return columns


def _held_out_line(held: HeldOut) -> str:
    """The bound of the mean loss, or that there are too few rows for one."""
    if held.vacuous:
        return _too_few_line(held)
    counted = f", each counted as at most {held.largest:.6g}" if held.clipped else ""
    return f"true loss at most {held.bound:.6g}{counted}{_of_people(held, '{:.6g}'.format)}"


def _mistakes_line(held: HeldOut) -> str:
    if held.vacuous:
        return _too_few_line(held)
    return f"at most {held.bound:.2%} of predictions{_of_people(held, '{:.2%}'.format)}"


def _of_people(held: HeldOut, text: Callable[[float], str]) -> str:
    """The words for a mean of people, with that of rows; nothing where rows are what is drawn."""
    if not held.people:
        return ""
    of_rows = "of rows not reported" if held.over_rows is None else held.over_rows.short(text)
    return f", as a mean of people ({of_rows})"


def _too_few_line(held: HeldOut) -> str:
    return f"too few {held.draws} to promise anything: {held.shortage}"


def _shift_line(shift: Shift) -> str:
    return f"clipped loss at most {shift.bound:.6g} under a shift of {shift.radius:g}"


def _interval_line(interval: Interval) -> str:
    return (
        f"true loss in [{interval.lower:.6g}, {interval.upper:.6g}] "
        f"(sampling {interval.sampling:.3g}, heterogeneity {interval.heterogeneity:.3g})"
    )


def _plain(value: Any) -> Any:
    """Dataclasses, mappings, arrays and numbers as JSON holds them; None for an infinite end."""
    if dataclasses.is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Privacy | RowPromise):
            return {**plain, "promise": value.promise}
        if not isinstance(value, HeldOut | Paired):
            return plain
        for name in ("over_rows", "above"):
            # Empty parts are left out, as earlier versions did.
            if plain.get(name, 0) is None:
                del plain[name]
        return {**plain, "vacuous": value.vacuous}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.integer) else value


def _restored_bound(kind: type[_Bound], part: dict[str, Any]) -> _Bound:
    part = renamed(part)
    marked = part.pop("vacuous")
    over_rows = part.setdefault("over_rows", None)
    part["over_rows"] = None if over_rows is None else OverRows(**over_rows)
    if kind is Paired:
        above = part.setdefault("above", None)
        part["above"] = None if above is None else (int(above[0]), int(above[1]))
    if set(part) != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError("a bound has other parts than it should")
    found = kind(**part)
    if found.vacuous is not marked:
        raise ValueError("a bound is marked vacuous that is not, or the other way round")
    return found


def _restored(content: dict[str, Any]) -> Certificate:
    try:
        content = renamed(content)
        part = content["interval"]
        interval = None
        if part is not None:
            ends = {end: -math.inf if part[end] is None else part[end] for end in ("lower", "paper_lower")}
            arrays = {name: np.asarray(part[name], float) for name in ("radii", "risks", "alpha")}
            interval = Interval(**{**part, **ends, **arrays, "names": tuple(part["names"])})
        held, clipped, mistakes, personal, personal_mistakes = (
            None if content[name] is None else _restored_bound(HeldOut, content[name])
            for name in ("held_out", "clipped", "mistakes", "personal", "personal_mistakes")
        )
        found = Certificate(
            float(content["confidence"]),
            tuple(map(str, content["names"])),
            tuple(map(int, content["rows"])),
            tuple(map(float, content["empirical"])),
            str(content["mixtures"]),
            interval,
            held,
            clipped,
            mistakes,
            None if content["shift"] is None else Shift(**content["shift"]),
            Frozen({str(name): str(why) for name, why in content["absent"].items()}),
            str(content["balls"]),
            None if content["weights"] is None else tuple(map(float, content["weights"])),
            personal,
            personal_mistakes,
            _restored_bound(Paired, content["against"]) if "against" in content else None,
            Privacy.restored(content["privacy"]) if "privacy" in content else None,
            RowPromise.restored(content["of_rows"]) if "of_rows" in content else None,
            float(content["procedure"]) if "procedure" in content else None,
        )
        # Whatever is missing or of another kind shows when it is written out again.
        found.to_json()
        str(found)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BidroError(f"This certificate is damaged: {type(error).__name__}, {error}.") from error
    return found
