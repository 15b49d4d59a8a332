"""Every public name is documented: what it takes, what it returns and raises, and an example that runs."""

import dataclasses
import doctest
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator

import bidro
from tests.small import mostly_slow

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PUBLIC = [name for name in bidro.__all__ if name != "__version__"]
# What the reference shows: the public names, what they return, and more that stands in its module alone.
SHOWN = {
    path.rpartition(".")[2]: path
    for page in REFERENCE.glob("*.md")
    for path in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
}
NAMES = sorted(SHOWN)
# Their examples take seconds, mostly to compile; one of the kind is run every time.
LONG = {
    "AFL", "BacktrackingAscent", "BiDROCompressed", "BiDROFL", "BiDROGossip", "BiDROLocal", "Calibration",
    "DRFA", "FDRSVM", "GroupDRO", "GroupDROBalls", "Interval", "MixtureBall", "Model", "QFFL", "Result",
    "RobustNetClassifier", "RobustNetRegressor", "ServerOptimised", "TrainedNetwork", "UnbalancedDRO",
    "WorstCase", "run", "run_many", "worst_case_mixture",
}  # fmt: skip


# Classes whose methods users call themselves; those of algorithms, losses and oracles are a contract, which
# is described where it is declared.
CALLED = (
    *("RobustRegressor", "RobustClassifier", "RobustNetRegressor", "RobustNetClassifier", "Model"),
    *("Certificate", "Transport", "ConvergenceBound"),
)


def thing_of(name):
    module, _, own = SHOWN[name].rpartition(".")
    return getattr(importlib.import_module(module), own)


def methods(name):
    """A public class's own methods that take something, by name; scikit-learn's describe themselves."""
    found = {}
    for method in dir(thing_of(name)):
        thing = inspect.unwrap(getattr(thing_of(name), method, None))
        ours = inspect.isroutine(thing) and (getattr(thing, "__module__", None) or "").startswith("bidro")
        if not method.startswith("_") and ours and parameters(thing):
            found[method] = thing
    return found


def sections(name):
    """The text below each heading of a public name's own docstring."""
    return sections_of(thing_of(name))


def sections_of(thing):
    text = inspect.cleandoc(thing.__doc__ or "")
    parts = re.split(r"^(Args|Attributes|Returns|Raises|Examples):\n", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def listed(text):
    """The names that a section describes, one below the other, each with something said of it."""
    return set(re.findall(r"^    (\w+): \S", text, flags=re.MULTILINE))


def described(name):
    """The parameters or fields that are described, by itself or by the name that it refers to."""
    found = sections(name)
    own = listed(found.get("Args", "")) | listed(found.get("Attributes", ""))
    other = re.search(r"those of `(\w+)`", found[""])
    return own if other is None else own | described(other[1])


def commented(thing):
    """Fields that have a comment behind them in the source, which the reference shows."""
    return set(re.findall(r"^    (\w+):.*  # (?!type:)\S", inspect.getsource(thing), flags=re.MULTILINE))


def parameters(thing):
    return set(inspect.signature(thing).parameters) - {"args", "kwargs", "self"}


def is_protocol(thing):
    return getattr(thing, "_is_protocol", False) or inspect.isabstract(thing)


def test_every_public_name_is_in_the_reference_with_the_reason_why_it_is_public():
    assert not set(PUBLIC) - set(SHOWN)
    assert all(thing_of(name) is getattr(bidro, name) for name in PUBLIC)
    assert all(thing_of(name).__module__ == SHOWN[name].rpartition(".")[0] for name in NAMES)
    index = (REFERENCE / "index.md").read_text()
    reasons = re.findall(r"^\| `(\w+)` \| (\S.+) \|$", index, flags=re.MULTILINE)
    assert sorted(name for name, _ in reasons) == sorted(PUBLIC)


def test_no_two_public_names_differ_by_case_alone():
    plain = [name.lower().replace("_", "") for name in PUBLIC]
    assert len(set(plain)) == len(plain)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_takes_returns_and_raises(name):
    thing, found = thing_of(name), sections(name)
    assert re.match(r"\S.*[.:)]", found[""], flags=re.DOTALL), "there is no first sentence"
    assert ">>> " in found.get("Examples", ""), "there is no example"
    if inspect.isfunction(thing):
        assert listed(found["Args"]) == parameters(thing)
        assert found["Returns"].strip()
        assert re.search(r"^    \w+: \S", found["Raises"], flags=re.MULTILINE)
        return
    if issubclass(thing, Exception) or is_protocol(thing) or name == "Usual":
        return
    known = described(name) | commented(thing)
    assert parameters(thing) <= known, f"not described: {sorted(parameters(thing) - known)}"
    if "__post_init__" in vars(thing) and "raise " in inspect.getsource(thing.__post_init__):
        assert "Raises" in found


@pytest.mark.parametrize("name", CALLED)
def test_a_method_that_users_call_says_what_it_takes_and_returns(name):
    found = methods(name)
    assert found
    for method, thing in found.items():
        parts = sections_of(thing)
        assert re.match(r"\S.*[.:)]", parts[""], flags=re.DOTALL), f"{method}: there is no first sentence"
        assert listed(parts.get("Args", "")) == parameters(thing), method
        returned = inspect.signature(thing).return_annotation
        assert parts.get("Returns", "").strip() or returned in (None, "None"), method


def test_whatever_is_described_is_there():
    """A parameter that was renamed or removed is not described any more."""
    for name in NAMES:
        thing, found = thing_of(name), sections(name)
        if "Args" in found:
            assert listed(found["Args"]) <= parameters(thing), name
        # What an estimator has is there after `fit`.
        if dataclasses.is_dataclass(thing) and not issubclass(thing, BaseEstimator):
            fields = {field.name for field in dataclasses.fields(thing)}
            assert listed(found.get("Attributes", "")) <= fields | set(dir(thing)), name


@pytest.mark.parametrize("name", mostly_slow(NAMES, lambda name: name not in LONG))
def test_the_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = thing_of(name)
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(verbose=False)
    said = []
    with warnings.catch_warnings():
        # The paper's penalties lie below the curvature of its loss.
        warnings.simplefilter("ignore", bidro.NonconcaveInnerWarning)
        for test in finder.find(thing, name, module=False, globs={}):
            assert test.examples
            runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
