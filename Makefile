# make demo   set up, run the paper's simulation at full size, say where to look
# make test   set up, lint, types, tests
# make study  set up, run the long statistical studies that the docs quote
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test study bench clean

$(STAMP): pyproject.toml
	@echo "== creating $(VENV) and installing bidro (once; later runs skip this)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@echo "== the paper's simulation: 20 runs of 10,000 rounds, four methods"
	$(BIN)/bidro reproduce --out out/reproduce

test: $(STAMP)
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "== types"
	$(BIN)/mypy
	@echo "== tests"
	$(BIN)/pytest

study: $(STAMP)
	@echo "== the studies that the docs quote (minutes)"
	$(BIN)/python -m bidro.experiments.study --out docs/studies
	$(BIN)/python -m bidro.experiments.promises --out docs/studies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[experiments]'
	$(BIN)/python -m bidro.experiments.real --out docs/studies

bench: $(STAMP)
	@echo "== benchmarks (JSON)"
	$(BIN)/python bench/rounds.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/rounds_to_gap.py
	$(BIN)/python bench/peers.py

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
