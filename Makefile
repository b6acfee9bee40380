# What developers type; .ci/run does the same from nothing.
BIN ?= .venv/bin

.PHONY: dev check lint types test format

dev:
	python3 -m venv .venv
	$(BIN)/pip install -e '.[test,dev]'
	$(BIN)/pre-commit install

check: lint types test

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

test:
	$(BIN)/python -m pytest -n auto

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
