"""A site with many rows: time and memory for `prepare`, its first answer, and for `site check`.

    python bench/site.py [--rows 1000000] [--columns 30]

Each is a process of its own, which reads the same Parquet table first. The peer is pandas, which reads that
table and makes the second moments of its columns, in a process of its own too. JSON on standard output.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--only", choices=("prepare", "check", "pandas"))
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(_measured(asked.only, asked.folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, asked.rows, asked.columns)
        found = {}
        for what in ("pandas", "prepare", "check"):
            command = [sys.executable, __file__, "--only", what, "--folder", str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[what] = json.loads(done.stdout)
    table = asked.rows * (asked.columns + 1) * 8 / 1e6
    for what in ("prepare", "check"):
        found[what]["times_pandas"] = round(found[what]["processor_s"] / found["pandas"]["processor_s"], 1)
        found[what]["tables_in_memory"] = round(found[what]["memory_mb"] / table, 2)
    print(
        json.dumps(
            {"rows": asked.rows, "columns": asked.columns, "table_mb": round(table), **found}, indent=2
        )
    )


def _write(folder: Path, rows: int, columns: int) -> None:
    """A site's table, agreement and configuration."""
    from bidro.data.tables import learn_schema
    from bidro.deploy.agreement.agreement import drafted, written

    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"x{j}": rng.normal(50, 10, rows).round(2) for j in range(columns)})
    table["y"] = (table["x0"] - table["x1"] + rng.normal(0, 5, rows)).round(2)
    table.to_parquet(folder / "east.parquet")
    few = table.head(5_000).assign(site="east")
    agreed = drafted(learn_schema(few, "site", "y", None, None, "refuse"), few, None, {"curves": "none"})
    (folder / "schema.toml").write_text(written(agreed))
    lines = ['client = "east"', 'data = "east.parquet"', 'schema = "schema.toml"']
    (folder / "site.toml").write_text("\n".join(lines) + "\n")


def _measured(what: str, folder: Path) -> dict[str, float]:
    """Seconds of the processor and of the clock, and the largest memory beyond that of the imports."""
    from bidro.deploy.site import session as site
    from bidro.deploy.site.check import check_site
    from bidro.deploy.site.config import Site
    from bidro.deploy.site.rows import SiteRows

    before, began, clock = _memory(), time.process_time(), time.perf_counter()
    if what == "pandas":
        table = pd.read_parquet(folder / "east.parquet").to_numpy()
        assert np.isfinite(table.T @ table).all()
    elif what == "check":
        assert check_site(Site.read(folder / "site.toml")).refused is None
    else:
        own = Site.read(folder / "site.toml")
        rows = SiteRows.load(own)
        assert b'"refused"' not in site.reply_of(own, rows, _request(rows))[:2_000]
    return {
        "processor_s": round(time.process_time() - began, 2),
        "clock_s": round(time.perf_counter() - clock, 2),
        "memory_mb": round(_memory() - before),
    }


def _request(rows: "object") -> bytes:
    import bidro
    from bidro.federated.engines.coordinator import Nothing
    from bidro.federated.engines.wire import pack

    header = {
        "version": bidro.__version__,
        "client": "east",
        "agreed": rows.agreed.digest,  # type: ignore[attr-defined]
        "question": "prepare",
        "round": 1,
        "run": "bench",
    }
    return pack(Nothing(), header)


def _memory() -> float:
    """The largest so far of this process, in MB; what `resource` says holds its parent's too."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
