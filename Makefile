# Every target installs what it needs into .venv; system packages come from scripts/system-packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-full weather check bench proto clean

demo: $(VENV)/runs
	scripts/demo

$(BIN)/pip:
	scripts/venv $(VENV) $(PYTHON)

$(VENV)/runs: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/installed: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,check]'
	touch $@ $(VENV)/runs

check: $(VENV)/installed
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/installed
	$(BIN)/pytest -m "not full"

test-full: $(VENV)/installed
	$(BIN)/pytest
	PHALANX_TEST_DATABASE=postgresql $(BIN)/pytest tests/harness -m "not full"

# As long as one likes, from new seeds: make weather SECONDS=3600, half of it on real processes; with JOBS=16 simulated, so many worlds at a time
weather: $(VENV)/installed
ifdef JOBS
	$(BIN)/python -m tests.weather --seconds $(or $(SECONDS),600) --jobs $(JOBS)
else
	PHALANX_WEATHER_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -s tests/weather -k "long_winter or ten_minutes"
endif

bench: $(VENV)/installed
	$(BIN)/python benchmarks/launch.py $(BENCH)

proto: $(VENV)/installed
	cd src && PATH=$(abspath $(BIN)):$$PATH $(abspath $(BIN))/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpclib_python_out=. phalanx/protocol/agent.proto

clean:
	rm -rf $(VENV)
