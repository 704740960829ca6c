# make run: the service. make test: everything that must hold. The rest measures.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := run
.PHONY: run test test-cuda check conformance kill-matrix same-plans fuzz fuzz-options bench bench-arena bench-backends bench-beside bench-layouts bench-memory bench-queue bench-serving bench-sparse cuda-kernels lock clean

# One folder, three depths: what serving needs, what testing adds, what benchmarks add.
$(VENV)/.installed: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed requirements-test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-test.txt
	touch $@

run: $(VENV)/.installed
	$(BIN)/stowplan serve

check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/pytest

# What is simulated of the CUDA kernels; needs no GPU, and compiles no kernel.
test-cuda: $(VENV)/.installed-test
	$(BIN)/pytest -m simulated tests/kernels/cuda tests/engine/cuda

# The whole of what the suite takes samples of: kills at random moments, and broken uploads.
kill-matrix: $(VENV)/.installed-test
	$(BIN)/python -m tests.jobs.kill_matrix

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.api.fuzz

# Random graphs times random options and targets: valid plans, right outputs, honest figures.
fuzz-options: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzzing.options

# Every kernel for GPUs, compiled for both generations; the suite takes one of each kind. Half an hour on two cores.
cuda-kernels: $(VENV)/.installed-test
	$(BIN)/python -m tests.engine.runtime.cuda.every_kernel

conformance: $(VENV)/.installed-test
	$(BIN)/python -m tests.conformance

$(VENV)/.installed-bench: $(VENV)/.installed requirements-bench.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-bench.txt
	touch $@

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.latency

bench-backends: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.backends

# Plans of this checkout and of an older one are the same but for renamed words: make same-plans OTHER=../old
same-plans: $(VENV)/.installed-test
	$(BIN)/python -m tests.same_plans $(OTHER)

# Two checkouts in turn: make bench-beside OTHER=../old
bench-beside: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.side_by_side $(OTHER)

bench-layouts: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.layouts

bench-arena: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.arena

bench-memory: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.plans
	$(BIN)/python -m benchmarks.arena

bench-queue: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.queue

bench-serving: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.serving

bench-sparse: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.sparse

# Run after a change of dependencies; needs uv.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements.txt
	uv pip compile pyproject.toml --extra s3 --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-s3.txt --constraint requirements.txt
	uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-test.txt --constraint requirements.txt
	uv pip compile pyproject.toml --extra bench --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-bench.txt --constraint requirements.txt
	uv pip compile pyproject.toml --extra cuda --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-cuda.txt --constraint requirements.txt

clean:
	rm -rf $(VENV) build dist *.egg-info
