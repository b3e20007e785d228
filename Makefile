# make run     the app on http://localhost:8501
# make test    everything that CI checks
# Other targets are parts of these two.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PORT ?= 8501
WORKERS ?= 2
ENV := .venv
BIN := $(ENV)/bin

.PHONY: run test check lint format types tests quick browser screenshots env dev-env clean

run: env
	$(BIN)/streamlit run app.py --server.port $(PORT) --server.headless true

test: check tests

check: lint types

lint: dev-env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: dev-env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev-env
	$(BIN)/mypy

# Browser tests come after the rest: an app, its hub and a browser keep two cores busy by themselves.
tests: browser
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not browser"
	$(BIN)/pytest -m browser

# Without the browser: what one runs while writing.
quick: dev-env
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not browser"

browser: dev-env
	$(BIN)/python scripts/chromium.py

screenshots: browser
	$(BIN)/python scripts/screenshots.py

env:
	@$(PYTHON) scripts/bootstrap.py $(ENV) requirements.txt

dev-env:
	@$(PYTHON) scripts/bootstrap.py $(ENV) requirements.txt requirements-dev.txt

clean:
	rm -rf $(ENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis screenshots
