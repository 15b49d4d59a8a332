"""The options of commands, made from the fields of `FitOptions`, which have their names, types and help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from bidro.fit.settings import settings_of
from bidro.workflow.options import FitOptions

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
# What an option is for, where it is not among those that most people need, which come first.
_PANELS = {
    "Data": (
        "schema",
        "task",
        "features",
        "categories",
        "drop",
        "dates",
        "missing",
        "database",
        "query",
        "memory",
    ),
    "Model": (
        "loss",
        "quantile",
        "power",
        "exposure",
        "personal",
        "curves",
        "pairs",
        "increasing",
        "decreasing",
        "folds",
        "gap",
        "seed",
    ),
    "Time to an event": ("event", "time", "time_grid", "entry"),
    "Robustness": ("radius", "weights", "max_cost", "criterion", "metric", "label_cost"),
    "Promises": ("support", "confidence", "shift", "hold_out", "new_clients", "promise_each", "refit"),
    "Privacy": ("epsilon", "delta", "rows_per_person", "honest"),
}
_PANEL_OF = {name: panel for panel, some in _PANELS.items() for name in some}
_KNOWN = {field.name: (field, known) for field, known in settings_of(FitOptions) if known.option is not None}


def with_options(*order: str, **said: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose `**given` are options of `FitOptions`; `order` has the names of all its parameters, and
    `said` help in place of a field's own. It is called with those that were given, as values of settings."""

    def made(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command, eval_str=True).parameters)
        del own["given"]
        whole = [own.get(name) or _parameter(name, said.get(name)) for name in order]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in whole]
        assert set(own) <= set(order)

        @functools.wraps(command)
        def called(**values: Any) -> None:
            given = {name: values.pop(name) for name in order if name not in own}
            command(**values, **{name: _value(name, v) for name, v in given.items() if v is not None})

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        return called

    return made


def names_of(*parts: type) -> tuple[str, ...]:
    """The options among the fields of these dataclasses."""
    return tuple(field.name for part in parts for field, _ in settings_of(part) if field.name in _KNOWN)


def _value(name: str, given: Any) -> Any:
    known = _KNOWN[name][1]
    return known.from_file(known.from_option(given))


def _parameter(name: str, said: str | None) -> inspect.Parameter:
    field, known = _KNOWN[name]
    words = known.help if said is None else said
    if said is None and field.default not in (None, ()):
        shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
        words += f" [{shown.replace('e-0', 'e-')}]"
    kind: Any = known.option
    typed = Annotated[kind | None, typer.Option(help=words, rich_help_panel=_PANEL_OF.get(name))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=typed)
