"""Files appear whole or not at all."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bidro.core.errors import BidroError
from bidro.core.files import require_file_place, require_writable, write_json, write_text, write_whole


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


def test_a_link_stays_a_link_and_what_it_points_at_is_written(tmp_path):
    (tmp_path / "kept").mkdir()
    real, link, dangling = tmp_path / "kept" / "real.csv", tmp_path / "link.csv", tmp_path / "new.csv"
    real.write_text("old")
    link.symlink_to(real)
    dangling.symlink_to(tmp_path / "kept" / "later.csv")
    write_text(link, "a")
    write_text(dangling, "b")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert real.read_text() == "a"
    assert (tmp_path / "kept" / "later.csv").read_text() == "b"
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["later.csv", "real.csv"]


def test_pipes_and_devices_are_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    device = os.lstat(os.devnull)
    write_text(Path(os.devnull), "nothing")
    assert os.lstat(os.devnull).st_ino == device.st_ino
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_an_open_file_is_added_to(tmp_path, mode):
    """`--out /dev/stdout > file` and `>> file`: what is in it stays, and what follows follows."""
    code = (
        "from pathlib import Path; from bidro.core.files import write_text; import sys\n"
        "write_text(Path('/dev/stdout'), 'rows\\n'); print('said', file=sys.stderr)"
    )
    (tmp_path / "log").write_text("before\n")
    with (tmp_path / "log").open(mode) as log:
        done = subprocess.run([sys.executable, "-c", code], stdout=log, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "said\n")
    assert (tmp_path / "log").read_text() == ("rows\n" if mode == "w" else "before\nrows\n")
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (piped.returncode, piped.stdout) == (0, "rows\n")


def test_a_place_that_cannot_be_written_is_said_before_anything_is_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for check, place, word in (
        (require_file_place, tmp_path, "is a folder"),
        (require_file_place, tmp_path / "file" / "below", "cannot be written"),
        (require_file_place, tmp_path / "circle", "circle"),
        (require_writable, tmp_path / "file", "cannot be written"),
        (require_writable, Path("/proc/bidro/new"), "cannot be written"),
    ):
        with pytest.raises(BidroError, match=word):
            check(place)
    require_file_place(tmp_path / "new" / "deep" / "file.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["circle", "file"]
