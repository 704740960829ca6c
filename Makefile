# make run: the service. make fmt, make quick: while working. make test: everything that must hold.
# The rest measures, or runs in full what the tests take samples of.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is kept: the tests start hundreds of processes, and each would compile what it imports again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := run
.PHONY: run fmt check quick test suite core-operators library-runtime test-avx2 test-cuda conformance kill-matrix fuzz fuzz-options fuzz-regions test-mxnet bench bench-arena bench-backends bench-beside bench-layouts bench-library bench-memory bench-queue bench-serving bench-sparse bench-training cuda-kernels lock clean same-plans accelerator-models library-models bench-trees bench-operators bench-narrow-weights bench-ready bench-zoo bench-capacity bench-resident bench-symbolic stream-faults bench-rows bench-microcontrollers bench-stream bench-precision

# One folder, three depths: what serving needs, what testing adds, what benchmarks add.
$(VENV)/.installed: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed requirements-test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-test.txt
	touch $@

# The service: API and workers, data in data/.
run: $(VENV)/.installed
	$(BIN)/stowplan serve

# Format, and repair what ruff can.
fmt: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Formatting, lint, types, and the borders between packages.
check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Under two minutes on two cores: the checks, and tests that compile no kernel and start no service: values
# without a graph, pure algorithms, graph rewrites, single passes, the schema of the API, and the documents.
QUICK := $(addprefix tests/engine/,core types memory partition operators buffers/test_buffer_assignment.py \
	storage/test_types.py storage/test_inference.py passes/test_canonicalize.py passes/test_order.py \
	passes/test_partition.py model/test_bindings.py layouts/test_choice.py rewrites/test_algebraic.py) \
	tests/api/test_openapi.py tests/cli/test_command_line.py tests/serving/test_oip_codec.py \
	tests/test_documents.py tests/test_imports.py tests/test_settings.py tests/test_words.py
quick: check
	$(BIN)/pytest $(QUICK)

# Everything that must hold: the checks and all tests, side by side. The checks keep one core busy for most of a
# minute; what they find is told even where a test fails, and the other way round.
test: $(VENV)/.installed-test
	$(MAKE) --no-print-directory --keep-going --jobs=2 check suite

suite: $(VENV)/.installed-test
	$(BIN)/pytest

# Kernels and programs as on a machine with AVX2 and without VNNI (Linux, as root).
test-avx2: $(VENV)/.installed-test
	$(BIN)/python -m tests.avx2 $(BIN)/pytest tests/kernels tests/engine

# What is simulated of the CUDA kernels; needs no GPU, and compiles no kernel.
test-cuda: $(VENV)/.installed-test
	$(BIN)/pytest -m simulated tests/kernels/cuda tests/engine/runtime/cuda

# The whole of what the suite takes samples of: kills at random moments, and broken uploads.
kill-matrix: $(VENV)/.installed-test
	$(BIN)/python -m tests.jobs.kill_matrix

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.api.fuzz

# Random graphs times random options and targets: valid plans, right outputs, honest figures.
fuzz-options: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzzing.options

# Random graphs with symbolic dimensions at five shapes each: right outputs in poisoned memory, valid plans.
fuzz-regions: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzzing.regions

# 10,000 seeded faults of the addresses of streamed segments, each rejected by the checker.
stream-faults: $(VENV)/.installed-test
	$(BIN)/python -m tests.engine.memory.rows.faults 10000

# Every kernel for GPUs, compiled for both generations; the suite takes one of each kind. Half an hour on two cores.
cuda-kernels: $(VENV)/.installed-test
	$(BIN)/python -m tests.engine.runtime.cuda.every_kernel

# The runtime of libraries, out of its C; needs clang, and only who changes the C needs it.
CLANG ?= clang-16
RUNTIME := app/kernels/library/runtime
CLANG_FLAGS := -Wall -Wextra -Werror -Oz -fPIC -fvisibility=hidden -fno-stack-protector -fno-ident -S -emit-llvm
# Headers of the C library for 64-bit ARM, which Debian has in libc6-dev-arm64-cross.
ARM_HEADERS ?= /usr/aarch64-linux-gnu/include
library-runtime:
	$(CLANG) $(CLANG_FLAGS) $(RUNTIME).c -o $(RUNTIME).ll
	$(CLANG) --target=aarch64-linux-gnu -isystem $(ARM_HEADERS) -mno-outline-atomics $(CLANG_FLAGS) $(RUNTIME).c -o $(RUNTIME)_aarch64.ll

# The page of the core operators, out of their rows.
core-operators: $(VENV)/.installed
	$(BIN)/python -m app.engine.entry.core_operators --docs > docs/core-operators.md

# Symbols that MXNet 1.9.1 writes, in an environment of its own, give its outputs; models go out and give theirs in it. It needs Python 3.8 to 3.11.
MXNET := build/mxnet
$(MXNET)/.installed:
	$(PYTHON) -m venv $(MXNET)
	$(MXNET)/bin/python -m pip install --quiet --disable-pip-version-check "numpy==1.23.5" "mxnet==1.9.1"
	touch $@

test-mxnet: $(VENV)/.installed-test $(MXNET)/.installed
	rm -rf $(MXNET)/cases
	$(MXNET)/bin/python -W ignore tests/mxnet/cases.py $(MXNET)/cases
	$(MXNET)/bin/python -W ignore tests/mxnet/training_graphs.py $(MXNET)/cases 600
	$(BIN)/python -m tests.mxnet $(MXNET)/cases
	rm -rf $(MXNET)/graphs $(MXNET)/models
	$(BIN)/python -m tests.mxnet.outward write $(MXNET)/graphs
	$(BIN)/python -m tests.mxnet.outward write $(MXNET)/models $(wildcard ../shared/data/models ../shared/data/zoo/small build/models)
	$(MXNET)/bin/python -W ignore tests/mxnet/run.py $(MXNET)/graphs
	$(MXNET)/bin/python -W ignore tests/mxnet/run.py $(MXNET)/models
	$(BIN)/python -m tests.mxnet.outward check $(MXNET)/graphs
	$(BIN)/python -m tests.mxnet.outward check $(MXNET)/models all
	$(MXNET)/bin/python -W ignore tests/mxnet/registry.py $(MXNET)/registry.json
	$(BIN)/python -m tests.mxnet.operators_page $(MXNET)/registry.json
	$(MXNET)/bin/python -W ignore tests/mxnet/planned.py $(MXNET)/planned.jsonl
	$(BIN)/python -m tests.mxnet.planned_types $(MXNET)/planned.jsonl
	$(MXNET)/bin/python -W ignore tests/mxnet/training_graphs.py $(MXNET)/training.jsonl 1000
	$(BIN)/python -m tests.mxnet.training_storage $(MXNET)/training.jsonl

# ONNX backend tests over our executor.
conformance: $(VENV)/.installed-test
	$(BIN)/python -m tests.conformance

$(VENV)/.installed-bench: $(VENV)/.installed requirements-bench.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-bench.txt
	touch $@

# Latency of whole models beside onnxruntime and OpenVINO: the table of the README.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.latency

# Models cut between backends, beside each backend alone.
bench-backends: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.backends

# Plans of this checkout and of an older one are the same but for renamed words: make same-plans OTHER=../old
same-plans: $(VENV)/.installed-test
	$(BIN)/python -m tests.same_plans $(OTHER)

# Models on disk planned for described accelerators, each plan checked.
accelerator-models: $(VENV)/.installed-test
	$(BIN)/python -m tests.engine.backends.test_described_models

# Two checkouts in turn: make bench-beside OTHER=../old
bench-beside: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.side_by_side $(OTHER)

# Choices of layouts, beside fixed ones.
bench-layouts: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.layouts

# Arenas, beside onnxruntime's.
bench-arena: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.arena

# The memory planner on recorded instances, then on whole models.
bench-memory: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.plans
	$(BIN)/python -m benchmarks.arena

# Bytes of models in strips of rows, predicted, beside their arenas.
bench-rows: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.rows

# Bytes and times of networks in strips of rows, executed, beside the fastest plan without.
bench-stream: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.stream

# Bytes of int8 networks in rows, beside published ones.
bench-microcontrollers: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.microcontrollers

# The first job of a model: time to its first plan and to the final one, and what tuning makes of it.
bench-ready: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.ready

# Single operators on own kernels, beside onnxruntime: none slower, none on a fallback.
bench-operators: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.operators

# The queue: latency and throughput of jobs.
bench-queue: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.queue

# Products with weights of 4 and 8 bits, attention to a cache.
bench-narrow-weights: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.narrow_weights

# Models under an error budget, beside quantizers of onnxruntime.
bench-precision: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.precision

# A served model: cost of a call over the bare executor.
bench-serving: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.serving

# What `stowplan capacity` chooses, beside what it predicts and beside the throughput of other runtimes.
bench-capacity: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.capacity

# Resident memory of a model with several shapes and instances: MODEL=resnet50.
bench-resident: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.resident $(MODEL)

# Programs of regions of shapes beside those planned for a shape alone; MODEL names some of them.
bench-symbolic: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.symbolic $(MODEL)

# Sparse weights, beside dense ones.
bench-sparse: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.sparse

# The program as a library, beside the executor and onnxruntime.
bench-library: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.library

# Libraries and static programs of all models on disk, byte for byte beside the executor.
library-models: $(VENV)/.installed-test
	$(BIN)/python -m tests.engine.export.every_model

# Ensembles of trees, one row and many, beside onnxruntime.
bench-trees: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.trees

# Models of the zoo beside onnxruntime and OpenVINO: those that its scripts wrote to build/zoo, and the small ones.
bench-zoo: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.zoo

# Memory of training steps, beside MXNet's own plans of the same networks.
bench-training: $(VENV)/.installed-bench $(MXNET)/.installed
	$(BIN)/python -m benchmarks.training

# Run after a change of dependencies; needs uv.
lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements.txt
	uv pip compile pyproject.toml --extra s3 --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-s3.txt --constraint requirements.txt
	uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-test.txt --constraint requirements.txt
	uv pip compile pyproject.toml --extra bench --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-bench.txt --constraint requirements.txt
	uv pip compile pyproject.toml --extra cuda --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet --output-file requirements-cuda.txt --constraint requirements.txt

clean:
	rm -rf $(VENV) build dist *.egg-info
