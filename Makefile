# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test oldest lint types docs clean

# The stamp is older than pyproject.toml exactly when the environment is out of date.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: .venv/installed  ## train and evaluate on a drawn data set, print where the report is
	$(BIN)/fcam demo --out runs/demo

# Tests side by side, a thread each: nearly all are Python, which one process does on one core.
test: .venv/installed  ## the whole suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

# The app's own dependency, gradio, needs newer versions of some.
oldest: pyproject.toml tests/oldest.txt  ## the suite with the oldest versions that are admitted, without the app
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --constraint tests/oldest.txt --editable '.[lite0,tensorboard,export,grabcut]' \
		pytest pytest-xdist hypothesis scikit-image grad-cam torchcam segmentation-models-pytorch selenium
	PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" OMP_NUM_THREADS=1 \
		.venv-oldest/bin/python -m pytest --numprocesses auto --maxprocesses 4 --ignore tests/app

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/pyright

docs: .venv/installed  ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv build dist site .pytest_cache .ruff_cache
