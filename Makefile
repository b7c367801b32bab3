# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test lint types docs clean

# The stamp is older than pyproject.toml exactly when the environment is out of date.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: .venv/installed  ## train and evaluate on a drawn data set, print where the report is
	$(BIN)/fcam demo --out runs/demo

test: .venv/installed  ## the whole suite
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/pyright

docs: .venv/installed  ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv build dist site .pytest_cache .ruff_cache
