"""Where compiled programs are kept between processes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import jax


@cache
def compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, so that the next run need not compile them.

    JAX's own variable takes precedence; where the folder cannot be made, runs are only slower.
    """
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
