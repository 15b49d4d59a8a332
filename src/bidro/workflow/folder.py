"""A model folder: its files, where it may be, and how it is written whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from bidro.certify.intervals import FILE as INTERVALS_FILE
from bidro.certify.trained_rows import FILE as TRAINED_ROWS_FILE
from bidro.core.errors import BidroError
from bidro.core.files import require_writable
from bidro.model.model_file import FILE, NETWORK_FILE
from bidro.model.personal_file import FILE as PERSONAL_FILE
from bidro.model.personal_file import PersonalModels
from bidro.report.page import page_html
from bidro.workflow.fit import Fit
from bidro.workflow.frontier import FRONTIER_FILE, Frontier, as_json, fits_of, frontier_bytes, frontier_of
from bidro.workflow.page_content import page_content


def folder_files(done: Fit) -> dict[str, str | bytes]:
    """The files of a model folder, by name."""
    fits = fits_of(done)
    offered = frontier_of(done, fits) if fits else None
    files = _of_one(done, offered)
    if done.trained_rows is not None:
        files[TRAINED_ROWS_FILE] = done.trained_rows.to_json()
    if offered is not None:
        files[FRONTIER_FILE] = frontier_bytes(offered, [_of_one(one, offered) for one in fits])
    return files


def _of_one(done: Fit, offered: Frontier | None) -> dict[str, str | bytes]:
    """What depends on which model is in it."""
    content = page_content(done) | ({} if offered is None else {"frontier": as_json(offered)})
    files: dict[str, str | bytes] = {
        "model.safetensors": done.model.to_bytes(),
        "certificate.json": done.certificate.to_json(),
        "report.html": page_html(content),
        "report.json": json.dumps(content, indent=1, allow_nan=False) + "\n",
        "run.toml": done.options.to_toml(),
    }
    if done.model.intervals is not None:
        files[INTERVALS_FILE] = done.model.intervals.to_json()
    if done.model.personal:
        files[PERSONAL_FILE] = PersonalModels(done.model.personal, done.model.x).to_bytes()
    return files


def require_place(folder: Path, force: bool) -> None:
    """Raise BidroError where a model folder cannot be written, or would replace something: another model only
    with `force`, anything else never."""
    if folder.exists():
        model = folder.is_dir() and any((folder / name).exists() for name in (FILE, NETWORK_FILE))
        if not model and not (folder.is_dir() and not any(folder.iterdir())):
            raise BidroError(f"'{folder}' exists and is not a model folder; choose another --out.")
        if model and not force:
            raise BidroError(
                f"'{folder}' holds a model already; choose another --out, or replace it with --force."
            )
    require_writable(folder.resolve().parent)


def write_folder(folder: Path, files: dict[str, str | bytes]) -> None:
    """Write all files atomically: a new folder replaces an old one, or nothing changes."""
    require_place(folder, force=True)
    # What a link points at is replaced, not the link.
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            (fresh / name).write_bytes(data)
        fresh.chmod(0o755)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-old-"))
            os.replace(folder, old)
            os.replace(fresh, folder)
            shutil.rmtree(old)
        else:
            os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
