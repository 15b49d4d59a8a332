"""Files from elsewhere: devices, pipes, deep JSON, packed bombs and formulas end in a sentence, at once."""

import gzip
import io
import json
import os

import numpy as np
import pandas as pd
import pytest

from bidro import Certificate, load_model, load_network
from bidro.certify.trained_rows import trained_rows_in
from bidro.core.errors import BidroError
from bidro.core.files import parsed_json, read_bytes, read_text, read_toml
from bidro.core.packed import decoded
from bidro.data.tables import as_csv, files, read_one
from bidro.model.onnx.run import file_bytes
from bidro.model.personal_file import personal_models_in

DEEP = "[" * 100_000 + "]" * 100_000

READERS = {
    "model.safetensors": load_model,
    "personal.safetensors": lambda folder: personal_models_in(folder, np.zeros(2)),
    "network.safetensors": load_network,
    "trained_rows.json": trained_rows_in,
    "model.onnx": lambda folder: file_bytes(folder / "model.onnx"),
    "run.toml": lambda folder: read_toml(folder / "run.toml"),
    "rows.csv": lambda folder: read_one(folder / "rows.csv"),
    "rows.csv.gz": lambda folder: read_one(folder / "rows.csv.gz"),
    "rows.parquet": lambda folder: read_one(folder / "rows.parquet"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_has_no_end_is_no_file(tmp_path, name, kind):
    if kind == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / name).symlink_to(tmp_path / "pipe")
    with pytest.raises(BidroError, match="is a device or a pipe, or links to one"):
        READERS[name](tmp_path)


def test_a_file_is_read_whole_or_not_at_all(tmp_path):
    (tmp_path / "text").write_bytes("a\nä".encode())
    assert read_text(tmp_path / "text", 4) == "a\nä"
    assert read_bytes(tmp_path / "text") == "a\nä".encode()
    for call, words in (
        (lambda: read_bytes(tmp_path / "text", 3), "more than 3 bytes"),
        (lambda: read_bytes(tmp_path), "is a folder"),
        (lambda: read_bytes(tmp_path / "none"), "No such file"),
    ):
        with pytest.raises(BidroError, match=words):
            call()
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    with pytest.raises(BidroError, match="not text in UTF-8"):
        read_text(tmp_path / "text")


def of_header(header: str) -> bytes:
    """As a file of numbers begins."""
    return len(header).to_bytes(8, "little") + header.encode()


def test_deep_json_is_refused(tmp_path):
    inner = json.dumps({"__metadata__": {"bidro": "0" * 64 + DEEP}})
    for data in (of_header(f'{{"__metadata__": {DEEP}}}'), of_header(inner)):
        with pytest.raises(BidroError, match="damaged"):
            decoded(data, "model")
    with pytest.raises(BidroError, match="nested too deeply"):
        Certificate.from_json(DEEP)
    (tmp_path / "trained_rows.json").write_text(DEEP)
    with pytest.raises(BidroError, match="damaged"):
        trained_rows_in(tmp_path)
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_json("[" * 65 + "]" * 65)
    assert parsed_json("[" * 60 + "]" * 60)


def test_a_report_nested_deeply_is_refused(tmp_path, monkeypatch):
    from bidro.cli import use

    monkeypatch.setattr("bidro.model.model_file.load_model", lambda folder: None)
    (tmp_path / "report.json").write_text(DEEP)
    with pytest.raises(BidroError, match="nested too deeply"):
        use.report(tmp_path)


def test_a_packed_table_larger_than_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """A million cells of one value, and texts of a megabyte a thousand times over, in a few kilobytes."""
    from pyarrow import parquet

    number, text, honest = (tmp_path / f"{name}.parquet" for name in ("number", "text", "honest"))
    pd.DataFrame({"x": np.ones(1_000_000)}).to_parquet(number)
    pd.DataFrame({"x": ["y" * 200_000] * 200}).to_parquet(text)
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=2000), "y": rng.choice(["a", "bc", None], 2000)}).to_parquet(honest)
    assert max(number.stat().st_size, text.stat().st_size) < 50_000
    monkeypatch.setattr(files, "memory_here", lambda: 4_000_000)
    assert len(read_one(honest)) == 2000
    # The text of every cell is counted once, with its 8 bytes.
    assert files.parquet_bytes(text) >= 200 * 200_000
    monkeypatch.setattr(parquet, "read_table", lambda *_, **__: pytest.fail("it was read"))
    for path in (number, text):
        with pytest.raises(BidroError, match="GiB of memory; take fewer rows"):
            read_one(path)


def test_packed_text_larger_than_the_memory_is_given_up(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 400_000))
    monkeypatch.setattr(files, "memory_here", lambda: 1_000_000)
    with pytest.raises(BidroError, match="GiB of memory; take fewer rows"):
        read_one(path)
    monkeypatch.undo()
    assert read_one(path).shape == (400_000, 2)


def test_no_cell_is_a_formula(caplog):
    texts = ['=cmd|"/c calc"!A0', "@SUM(A1)", "+1+1", "-2+3", "\tx", "\rx", "plain", "-1", "+1e3"]
    table = pd.DataFrame({"prediction": texts, "=title": np.arange(9.0) - 4})
    again = pd.read_csv(io.StringIO(as_csv(table), newline=""), dtype=str, keep_default_na=False)
    shown = again["prediction"].tolist()
    assert [text for text in shown if text[0] in "=+-@\t\r"] == ["-1", "+1e3"]
    assert shown == [f"'{text}" for text in texts[:6]] + texts[6:]
    assert "'=title" in again
    assert again["'=title"].astype(float).tolist() == table["=title"].tolist()
    assert "would be a formula to a spreadsheet" in caplog.text
    words = pd.DataFrame({"prediction": pd.Series(["=a", None, "b"], dtype="string"), "p": [0.5, -0.5, 1.0]})
    assert as_csv(words) == "prediction,p\n'=a,0.5\n,-0.5\nb,1.0\n"


def test_predicted_classes_are_no_formulas(tmp_path, capsys):
    from tests.cli.test_command import run

    rng = np.random.default_rng(0)
    feature = rng.normal(size=80)
    table = pd.DataFrame({"x": feature, "y": np.where(feature > 0, "=1+1", "@b"), "site": ["a", "b"] * 40})
    table.to_csv(tmp_path / "rows.csv", index=False)
    given = (
        "--target",
        "y",
        "--client",
        "site",
        "--weights",
        "fixed",
        "--personal",
        "none",
        "--curves",
        "none",
    )
    run(capsys, "fit", tmp_path / "rows.csv", *given, "--out", tmp_path / "model")
    code, out, _ = run(capsys, "predict", tmp_path / "model", tmp_path / "rows.csv")
    assert code == 0
    assert {line.split(",")[0] for line in out.splitlines()[1:]} == {"'=1+1", "'@b"}
