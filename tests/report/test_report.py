"""Files appear whole or not at all."""

import json

import pytest

from bidro.report.files import write_json, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "result.json"
    write_json(path, {"a": 1})

    def fail(temporary):
        temporary.write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        write_whole(path, fail)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_numbers_that_are_not_finite_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []
