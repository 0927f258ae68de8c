# Every target installs what it needs into .venv; system packages come from scripts/system-packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-full check bench proto clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,check]'
	touch $@

check: $(VENV)/installed
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/installed
	$(BIN)/pytest -m "not full"

test-full: $(VENV)/installed
	$(BIN)/pytest

proto: $(VENV)/installed
	cd src && PATH=$(abspath $(BIN)):$$PATH $(abspath $(BIN))/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpclib_python_out=. phalanx/protocol/agent.proto

clean:
	rm -rf $(VENV)
