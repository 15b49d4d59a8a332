"""The files of a model folder."""

from __future__ import annotations

import json

from bidro.guarantees.trained_rows import FILE as TRAINED_ROWS_FILE
from bidro.own_file import FILE as OWN_FILE
from bidro.own_file import OwnModels
from bidro.report.page import page_html
from bidro.workflow.fit import Fit
from bidro.workflow.page_content import page_content


def folder_files(done: Fit) -> dict[str, str | bytes]:
    """By name: all that `write_folder` needs."""
    content = page_content(done)
    files: dict[str, str | bytes] = {
        "model.safetensors": done.model.to_bytes(),
        "certificate.json": done.certificate.to_json(),
        "report.html": page_html(content),
        "report.json": json.dumps(content, indent=1, allow_nan=False) + "\n",
        "run.toml": done.options.to_toml(),
    }
    if done.trained_rows is not None:
        files[TRAINED_ROWS_FILE] = done.trained_rows.to_json()
    if done.model.own:
        files[OWN_FILE] = OwnModels(done.model.own, done.model.x).to_bytes()
    return files
