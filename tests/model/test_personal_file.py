"""Clients' personal models as a file: whole or refused, and never beside another shared model."""

from __future__ import annotations

import stat

import numpy as np
import pytest

from bidro.certify.trained_rows import TrainedRows
from bidro.core.errors import BidroError
from bidro.core.files import write_private
from bidro.model.personal_file import FILE, PersonalModels, personal_models_in

SHARED = np.array([1.0, -2.0, 0.5])
OWN = PersonalModels({"north": SHARED + 0.1, "süd/ost": SHARED - 0.1}, SHARED)


def test_back_and_forth(tmp_path):
    (tmp_path / FILE).write_bytes(OWN.to_bytes())
    found = personal_models_in(tmp_path, SHARED)
    assert list(found) == ["north", "süd/ost"]
    assert all(np.array_equal(found[name], OWN.clients[name]) for name in found)
    assert dict(personal_models_in(tmp_path / "nowhere", SHARED)) == {}


def test_the_sketch_of_rows_that_a_model_was_adapted_on_goes_with_it():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    sketch = TrainedRows.of({"north": rows}, adapted="north")
    data = PersonalModels(OWN.clients, SHARED, {"north": sketch}).to_bytes()
    found = PersonalModels.from_bytes(data, SHARED, "personal").adapted
    assert list(found) == ["north"]
    assert found["north"].to_json() == sketch.to_json()
    assert found["north"].compare({"north": rows, "other": -rows}).trained_on
    assert not found["north"].compare({"north": -rows, "other": rows}).trained_on
    with pytest.raises(BidroError, match="do not fit its clients"):
        PersonalModels.from_bytes(
            PersonalModels(OWN.clients, SHARED, {"west": sketch}).to_bytes(), SHARED, "personal"
        )


def test_a_correction_of_another_model_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(OWN.to_bytes())
    with pytest.raises(BidroError, match="corrects another model"):
        personal_models_in(tmp_path, SHARED + 1e-12)
    with pytest.raises(BidroError, match="do not fit"):
        personal_models_in(tmp_path, SHARED[:2])


def test_any_changed_byte_is_noticed():
    data = bytearray(OWN.to_bytes())
    for place in range(0, len(data), 7):
        changed = bytes(data[:place]) + bytes([data[place] ^ 1]) + bytes(data[place + 1 :])
        with pytest.raises(BidroError):
            PersonalModels.from_bytes(changed, SHARED, "personal")


def test_it_is_for_the_owner_s_eyes(tmp_path):
    path = tmp_path / FILE
    write_private(path, b"first")
    write_private(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [FILE]
