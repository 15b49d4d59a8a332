"""Progress on the screen, and where compiled programs are kept between runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bidro.workflow.fit import Progress

_STAGES = {
    "reading": "reading tables",
    "preparing": "preparing",
    "choosing": "choosing radius and weights",
    "certifying": "certifying",
    "writing": "writing",
}


def compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, so that the next run need not compile them.

    JAX's own variable takes precedence; where the folder cannot be made, runs are only slower.
    """
    import jax

    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "bidro" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Progress]:
    """A line that says what is being done, with rounds and the gap; on stderr, and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from bidro.workflow.fit import Progress

    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet,
    )
    with bar:
        task = bar.add_task("starting", total=None)
        yield Progress(
            stage=lambda name: bar.update(task, description=_STAGES.get(name, name)),
            calibration=lambda t, left: bar.update(
                task, description=f"choosing radius and weights: round {t}, {left} candidates to go"
            ),
            solving=lambda t, gap: bar.update(task, description=f"solving: round {t}, gap {gap:.1e}"),
        )
