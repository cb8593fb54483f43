# Each target is one command and needs nothing typed before it: a fresh machine with Python 3.11 or newer, a C++
# compiler and a package index is enough. PYTHON chooses the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The package alone, and what tests need besides.
LIBRARY := $(VENV)/.library
READY := $(VENV)/.ready
# Tests run in a process for each core; some take as long as a thousand others.
SPREAD := --numprocesses auto --maxprocesses 8 --dist worksteal
# Bytecode is left to the first import: most of it is never imported.
PIP := --quiet --disable-pip-version-check --no-compile
NODE_MODULES := $(patsubst %,%/node_modules/.package-lock.json,docs/examples/browser docs/examples/node tests/web)
CPP := $(shell find ops tests/ops tests/bench docs/examples/cpp docs/examples/mpi -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.inc' -o -name '*.cu')

.PHONY: demo test test-long test-web test-torch test-torch-long torch-environment sanitize fuzz fuzz-files fuzz-gradients fuzz-kernels spellings mutants lint format bench gpu matrix networks platforms wheels check-wheels release-check docs docs-serve pictures clean

demo: $(LIBRARY)
	@mkdir -p build
	$(BIN)/python models/light.py densenet121 -o build/densenet121.onnx
	$(BIN)/bngrad validate build/densenet121.onnx --dim N=2

test: $(READY)
	$(BIN)/python -m pytest -m "not long and not web" $(SPREAD)

test-long: $(READY)
	$(BIN)/python -m pytest -m long $(SPREAD)

# Node and npm are needed, and Chromium: the examples in JavaScript, in Node and in a browser.
test-web: $(READY) $(NODE_MODULES)
	$(BIN)/python -m pytest -m "web and not long" tests/web

# PyTorch, whose wheels take gigabytes, has an environment of its own, which also sees the packages of $(VENV):
# make test-torch TORCH='torch==2.9.*' tests with another release.
TORCH ?= torch
torch-environment:
	$(PYTHON) -m venv build/torch
	build/torch/bin/python -m pip install $(PIP) '$(TORCH)'

test-torch test-torch-long: $(READY) torch-environment
	build/torch/bin/python tests/from_torch/share_packages.py $(BIN)/python
	build/torch/bin/python -m pytest -m '$(if $(findstring long,$@),long,not long)' \
	  tests/from_torch tests/passes/test_import_aten_torch.py tests/gpu $(SPREAD)

# Install scripts fetch GPU libraries, which nothing here uses.
%/node_modules/.package-lock.json: %/package.json %/package-lock.json
	npm ci --ignore-scripts --no-audit --no-fund --prefix $*
	@touch $@

# Every mutant, in a copy, and whether a test fails on it: make mutants MUTANTS="--log FILE" can be interrupted.
mutants: $(READY)
	$(BIN)/python tests/metamorphic/mutation_campaign.py $(MUTANTS)

sanitize: $(READY)
	$(BIN)/python -m pytest -m long tests/ops/test_programs.py -k sanitizer

# Over a million calls and twenty thousand models: most of an hour. FUZZ_SEED=5 draws others.
fuzz-kernels: $(READY)
	FUZZ_CASES=$${FUZZ_CASES:-240000} $(BIN)/python -m pytest -m long -rP tests/ops/test_fuzz.py

# Mutated models against the commands: make fuzz FUZZ='--count 1000 --seed 7'; --only 42 tells of one case again.
FUZZ ?= --count 100000 --seed 1
fuzz: $(READY)
	$(BIN)/python tests/fuzz/campaign.py $(FUZZ)

# Mutated data, states, checkpoints, logs and metadata against every command.
FUZZ_FILES ?= --count 20000 --seed 1
fuzz-files: $(READY)
	$(BIN)/python tests/fuzz/file_campaign.py $(FUZZ_FILES)

# Random graphs over all gradient rules, against central differences; --only 42 shows one case again, minimized.
FUZZ_GRADIENTS ?= --count 30000 --seed 1
fuzz-gradients: $(READY)
	$(BIN)/python tests/gradient_fuzz/campaign.py $(FUZZ_GRADIENTS)

# Batch norm in primitives, spelled at random, and near misses; --only 42 shows one case again.
SPELLINGS ?= --count 20000 --seed 1
spellings: $(READY)
	$(BIN)/python tests/spellings/campaign.py $(SPELLINGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# The full table takes most of an hour: make bench BENCH=--quick, or any other of its options.
bench: $(READY)
	$(BIN)/python tests/bench/bench_kernels.py $(BENCH)

# The wheel with other releases of its dependencies, written to docs/reference/versions.md; MATRIX='"all newest"' runs
# one row again.
matrix: $(READY)
	$(BIN)/python tests/matrix/run_matrix.py $(MATRIX)

# Whether this commit can be released; RELEASE=--candidate before it has a tag.
release-check: $(READY)
	$(BIN)/python tests/release/release_check.py $(RELEASE)

# Networks of torchvision and timm against PyTorch, written to docs/reference/networks.md: hours, and goes on where it
# was interrupted. NETWORKS='resnet18 mlp' tries these again.
networks: $(READY)
	$(BIN)/python tests/networks/run_networks.py $(NETWORKS)

# On a machine with a GPU, and the wheel, onnxruntime-gpu and PyTorch in the folders of BNGRAD_SITES or in PYTHON's: at
# most six minutes, and no network. GPU='--device cpu --quick' tries the programs without a GPU.
gpu:
	$(PYTHON) tests/gpu/run_gpu.py $(GPU)

# The site, in build/site: build/site/index.html can be opened as a file. Where there is npm, the site has the page that
# trains, which is read over HTTP.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
docs: $(READY) $(if $(shell command -v npm),docs/examples/browser/node_modules/.package-lock.json)
	$(MKDOCS) build --strict

docs-serve: $(READY)
	$(MKDOCS) serve --livereload

# docs/images, from models and from the tables of docs/measurements.
pictures: $(READY)
	$(BIN)/python docs/generate/graphs.py
	$(BIN)/python docs/generate/charts.py
	$(BIN)/python docs/generate/loss_curve.py

# The wheels of dist/ where this machine can run them, written to docs/reference/platforms.md: needs Debian and root, and
# takes most of an hour. PLATFORMS='musl-x86_64 windows-x86_64' tries these again.
platforms: $(READY)
	$(BIN)/python -m pip install $(PIP) --no-build-isolation $(NATIVE) --editable '.[wheels]'
	$(BIN)/python tests/platforms/run_platforms.py $(PLATFORMS)

# The source distribution and the wheels of all platforms, in dist/: half an hour of one core, and less from the second
# time on. WHEELS='--only linux-x86_64' builds one; WHEELS=--twice also compares with a second build.
WHEEL_TOOLS := build/wheels/tools
wheels: $(WHEEL_TOOLS)/.ready
	$(WHEEL_TOOLS)/bin/python -m ops.wheels.build_wheels $(WHEELS)

check-wheels: $(WHEEL_TOOLS)/.ready
	$(WHEEL_TOOLS)/bin/python -m ops.wheels.check_wheel dist/*.whl

$(WHEEL_TOOLS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["wheels"])' | \
	  xargs $(WHEEL_TOOLS)/bin/python -m pip install $(PIP)
	@touch $@

# The library is built by pip, with the environment's own tools, where the tests build their programs from the same
# objects; an editable install follows changes of Python files by itself.
# WERROR=ON treats the compiler's warnings as errors.
WERROR ?= OFF
NATIVE := --config-settings=build-dir=build/native --config-settings=cmake.define.BUILD_TESTING=OFF \
          --config-settings=cmake.define.BNGRAD_WERROR=$(WERROR)
$(LIBRARY): pyproject.toml $(shell find ops -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12 ...'; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP) 'scikit-build-core>=0.10' 'cmake>=3.18' ninja
	$(BIN)/python -m pip install $(PIP) --no-build-isolation $(NATIVE) --editable .
	@touch $@

$(READY): $(LIBRARY)
	$(BIN)/python -m pip install $(PIP) 'bngrad[lint]'
	@touch $@

clean:
	rm -rf $(VENV) build dist
