# make demo   set up, run the paper's simulation at full size, say where to look
# make test   set up, lint, types, tests
# make fuzz   random problems against plain NumPy for an hour, or MINUTES=5; JSON at the end
# make study  set up, run the long statistical studies that the docs quote
# make docs   the documentation as a site, in out/site
# make wheel  build the wheel, install it into an empty environment, run the README there
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test fuzz mutants test-slow durations test-deploy browser postgres study bench docs notebooks wheel clean

$(STAMP): pyproject.toml
	@echo "== creating $(VENV) and installing bidro (once; later runs skip this)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@echo "== the paper's simulation: 20 runs of 10,000 rounds, four methods"
	$(BIN)/bidro reproduce --out out/reproduce

test: $(STAMP) browser postgres
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "== types, beside the tests"
	@$(BIN)/mypy > $(VENV)/types.txt 2>&1 & types=$$!; \
	  $(BIN)/pytest; tests=$$?; \
	  wait $$types; found=$$?; cat $(VENV)/types.txt; exit $$((tests + found))

MINUTES ?= 60
fuzz: $(STAMP)
	@echo "== random problems against independent evaluations for $(MINUTES) minutes (JSON)"
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

test-slow: $(STAMP)
	@echo "== the tests that take minutes each"
	$(BIN)/pytest -m slow

durations: $(STAMP)
	@echo "== all tests but those of networks of processes (an hour); rewrites tests/durations.json"
	$(BIN)/pytest -m 'not deploy and not site' --record-durations

test-deploy: $(STAMP)
	@echo "== all tests on real networks of processes (an hour or two; one worker, as they fill the machine)"
	$(BIN)/pytest -n 0 -m 'deploy or not slow' \
	  tests/deploy/test_flare.py tests/deploy/test_flare_kit.py tests/deploy/test_flower.py \
	  tests/deploy/test_faults.py tests/deploy/test_networks_deployed.py tests/deploy/test_private_faults.py \
	  tests/deploy/test_install.py

# ROOM is a folder or file under src/bidro, BUDGET the number of changes tried in each file.
BUDGET ?= 20
mutants: $(STAMP)
	@echo "== changes of the source that the tests should notice (hours for all rooms; JSON)"
	$(BIN)/python -m tests.mutations $(if $(ROOM),--room $(ROOM)) --budget $(BUDGET)

# The report page is tested in a real browser. Where one cannot be installed, those tests skip and say so;
# BIDRO_REQUIRE_BROWSER=1 makes them fail instead.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  echo "== installing Debian's chromium and chromium-driver for the tests of the report page"; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    chromium chromium-driver) >/dev/null 2>&1 || echo "   could not: the browser tests will skip"; }
	@test -f out/axe/node_modules/axe-core/axe.min.js || { \
	  echo "== installing axe-core by npm, which tests whether the page is accessible"; \
	  npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix out/axe axe-core@4 \
	    >/dev/null 2>&1 || echo "   could not: those tests will skip"; }

# Queries are tested on a real PostgreSQL. Where Debian's package cannot be installed, that test skips and says so.
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	  echo "== installing Debian's postgresql for the tests of queries"; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    postgresql) >/dev/null 2>&1 || echo "   could not: that test will skip"; }

study: $(STAMP)
	@echo "== the studies that the docs quote (those on real tables take hours)"
	$(BIN)/python -m studies.simulation --out docs/studies
	$(BIN)/python -m studies.promises --out docs/studies
	$(BIN)/python -m studies.coefficients --out docs/studies
	$(BIN)/python -m studies.row_coverage --out docs/studies
	@test -z '$(DATA)' || $(BIN)/python -m studies.published --data '$(DATA)' --out docs/studies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[experiments]'
	$(BIN)/python -m studies.real_data --out docs/studies
	$(BIN)/python -m studies.against_peers --out docs/studies
	$(BIN)/python -m studies.shift --out docs/studies
	$(BIN)/python -m pip install --quiet --disable-pip-version-check mapie crepes
	$(BIN)/python -m studies.row_intervals --out docs/studies

# The site is built strictly: a warning is a failure. The variable silences an announcement of its theme, which is none.
DOCS := $(VENV)/.installed-docs
$(DOCS): $(STAMP)
	@echo "== installing what the documentation needs (once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $(DOCS)

docs: $(DOCS)
	@echo "== the documentation, strictly"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/pytest -n 0 tests/docs -m site
	@echo "== open out/site/index.html"

notebooks: $(DOCS)
	@echo "== running the notebooks anew, with their outputs"
	$(BIN)/python -m tests.docs.notebooks

wheel: $(STAMP)
	@echo "== a wheel, an empty environment, and what the README says in it"
	rm -rf out/wheel && mkdir -p out/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/wheel .
	$(PYTHON) -m venv out/wheel/empty
	out/wheel/empty/bin/python -m pip install --quiet --disable-pip-version-check out/wheel/*.whl
	$(BIN)/python -m tests.docs.readme out/wheel/empty/bin/python

bench: $(STAMP)
	@echo "== benchmarks (JSON)"
	$(BIN)/python bench/rounds.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/rounds_to_gap.py
	$(BIN)/python bench/peers.py
	$(BIN)/python bench/fit.py
	$(BIN)/python bench/squared.py
	$(BIN)/python bench/cross_validation.py
	$(BIN)/python bench/many_clients.py
	$(BIN)/python bench/federated_rounds.py
	$(BIN)/python bench/future_work.py
	$(BIN)/python bench/site.py
	$(BIN)/python bench/deploy.py

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
