"""Replies that are changed at random: nothing but BidroError comes of them, and none that is accepted says
what no honest site could."""

import copy
import json

import numpy as np
import pytest
from safetensors.numpy import load, save

from bidro.core.errors import BidroError
from bidro.data.standardise import Standard
from bidro.deploy.server import plausibility as checks
from bidro.deploy.server.serve import run_job
from bidro.federated.engines import coordinator
from bidro.federated.engines.coordinator import InMemory
from bidro.federated.engines.wire import header_of
from tests.deploy.sites import QUICK, SUPPORT, answering, job, table, write_sites

EXTREMES = (0.0, -1.0, 1e-300, 1e12, 1e60, 1e150, 1e300, -1e300, np.inf, -np.inf, np.nan)


class Moment:
    """An honest reply at the moment when it arrives: what is checked, and what its client has told so far."""

    def __init__(self, name, request, data, like, check, told):
        self.name, self.request, self.data, self.like = name, request, data, like
        self.check, self.told, self.before = check, told, copy.deepcopy(told.get(name))

    @property
    def question(self):
        return header_of(self.request)["question"]

    def accepted(self, data):
        """The reply in `data`, or None where it is refused. What the client has told stays as it was."""
        if self.before is not None:
            self.told[self.name] = copy.deepcopy(self.before)
        try:
            found, rows = coordinator.checked_reply(data, self.request, self.like)
            coordinator.require_consistent(self.check, self.name, found, rows)
        except BidroError as error:
            said = str(error)
        else:
            return found
        assert "\n" not in said
        return None


def moments_of(folder, monkeypatch, whole, support, options):
    """Those of an honest run, of one client."""
    agreed = write_sites(folder, whole, support, 'release = "trusted"')
    found, told = [], {}
    of, ask = checks.Consistency.of, coordinator.Coordinator.ask

    def watched_of(*parts):
        made = of(*parts)
        told.clear()
        told.update(made.reported)
        made.reported = told
        return made

    def watched(self, question, t, settings, messages, like, needs_all=True, check=None, *counted):
        def noted(name, reply, rows):
            if name == "mid":
                found.append(Moment(name, *self.carrier.last[name], like, check, told))
            check(name, reply, rows)

        return ask(self, question, t, settings, messages, like, needs_all, noted, *counted)

    class Kept(InMemory):
        def __init__(self, clients):
            super().__init__(clients)
            object.__setattr__(self, "last", {})

        def exchange(self, messages, timeout):
            delivered = super().exchange(messages, timeout)
            self.last.update((name, (messages[name], reply)) for name, reply in delivered.replies.items())
            return delivered

    monkeypatch.setattr(checks.Consistency, "of", watched_of)
    monkeypatch.setattr(coordinator.Coordinator, "ask", watched)
    run_job(job(agreed, options=options), Kept(answering(folder)), folder / "runs")
    return found


def changed(rng, data):
    """The reply with one thing changed."""
    arrays, header = load(data), header_of(data)
    kind = rng.integers(8)
    if kind == 0:
        place = int(rng.integers(len(data)))
        return data[:place] + bytes([int(rng.integers(256))]) + data[place + 1 :]
    if kind == 1:
        return data[: int(rng.integers(len(data)))]
    if kind == 2:
        key = rng.choice(["answers", "rows", "refused", "odd"])
        values = (None, -1, 0, 10**9, 10**30, 1.5, True, "x\x1b[2J\r\n" * 99, [[]], {"a": []}, "\u202e")
        header[str(key)] = values[int(rng.integers(len(values)))]
        return save(arrays, metadata={"bidro": json.dumps(header)})
    name = str(rng.choice([n for n in arrays if arrays[n].size] or list(arrays)))
    value = arrays[name].copy()
    if kind == 3:
        arrays[name] = value.astype(np.float32) if rng.random() < 0.5 else value[..., None]
    elif kind == 4:
        arrays[f"{name}\x1b"] = arrays.pop(name)
    elif value.size and value.dtype.kind == "f":
        flat = value.reshape(-1)
        where = rng.integers(flat.size) if rng.random() < 0.7 else slice(None)
        if kind == 5:
            flat[where] = EXTREMES[int(rng.integers(len(EXTREMES)))]
        elif kind == 6:
            flat[where] *= rng.choice([-1.0, 0.0, 0.5, 2.0, 10.0, 1e6])
        else:
            flat[where] += rng.normal() * rng.choice([1e-3, 1.0, 1e3])
        arrays[name] = value
    return save(arrays, metadata={"bidro": json.dumps(header, sort_keys=True)})


def require_possible(moment, honest, found):
    """What an accepted reply may not say, told from the honest numbers and not by what accepted it."""
    parts = {name: np.asarray(value, float) for name, value in found._asdict().items()}
    if "models" in (query := load(moment.request)):  # of a Newton step: what comes after so many is ignored
        parts = {name: value[: int(query["models"])] for name, value in parts.items()}
    true = {name: np.asarray(value, float) for name, value in honest._asdict().items()}
    for name, value in parts.items():
        assert np.all(np.isfinite(value)), name
        if name not in ("multiplier", "curvature", "table") and moment.question != "prepare":
            assert np.max(np.abs(value), initial=0.0) < 1e131, (moment.question, name)
    if "upper" in parts:
        assert parts["attained"] <= parts["upper"] * (1 + 1e-6)
        assert parts["upper"] >= 0
    if "around" in parts:
        around = parts["around"].reshape(-1, *parts["around"].shape[-2:])
        assert np.linalg.eigvalsh((around + np.swapaxes(around, 1, 2)) / 2).min() > -1e-4
        mean = parts["mean"].reshape(len(around), -1)
        np.testing.assert_allclose(
            mean, true["mean"].reshape(mean.shape), atol=0.2 if len(mean) > 1 else 1e-6
        )
    if moment.question == "assess":
        assert parts["loss"] >= 0
        np.testing.assert_allclose(parts["loss"], true["loss"], rtol=0.05)
        assert np.all(parts["robust"] >= parts["loss"] * (1 - 1e-6))
    if moment.question == "bounds":
        for k, part in enumerate(("clipped", "held_out", "mistakes", "personal", "personal_mistakes")):
            assert np.all(parts[part] >= parts["means"][k] * (1 - 1e-6))
        assert parts["loss"] >= 0
    if moment.question == "prepare":
        assert parts["rows"] >= 1
        both = checks.Prepared(*(np.stack([one, two, two]) for one, two in zip(found, honest, strict=True)))
        agreed = Standard(np.zeros(3), np.ones(3), 0.0, 1.0)
        lost = checks.others_lost(("a", "b", "c"), ("u", "v", "ward=b", "y"), both, agreed)
        assert "a" in lost or np.max(np.abs([parts["mean"], parts["deviation"]])) < 1e12


CASES = {
    "squared": (False, None, {}),
    "huber": (False, None, {**QUICK, "loss": "huber"}),
    "support": (False, SUPPORT, {**QUICK, "metric": "joint"}),
    "logistic": (True, None, {}),
}


def fuzzed(folder, monkeypatch, case, count):
    classes, support, options = CASES[case]
    # Of classes every fold is to have enough rows.
    whole = table(classes, sizes=(200, 220, 200, 240, 200) if classes else (100, 110, 100, 120, 100))
    moments, rng = moments_of(folder, monkeypatch, whole, support, options), np.random.default_rng(3)
    honest = [moment.accepted(moment.data) for moment in moments]
    assert {moment.question for moment in moments} >= {"prepare", "round", "assess", "bounds"}
    assert all(found is not None for found in honest)
    refused = 0
    for k in range(count):
        moment, true = moments[k % len(moments)], honest[k % len(moments)]
        found = moment.accepted(changed(rng, moment.data))
        refused += found is None
        if found is not None:
            require_possible(moment, true, found)
    return refused / count


@pytest.mark.parametrize("case", ["squared", "huber"])
def test_changed_replies_are_refused_or_could_be_true(case, tmp_path, monkeypatch):
    assert fuzzed(tmp_path, monkeypatch, case, 300) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_ten_thousand_changed_replies_are_refused_or_could_be_true(case, tmp_path, monkeypatch):
    assert fuzzed(tmp_path, monkeypatch, case, 10_000) > 0.6
