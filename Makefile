# Two commands do all the set-up on a fresh Debian machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LINTERS := $(VENV)/.linters

.PHONY: demo test torch test-torch training test-training cuda test-cuda browser test-browser packages test-packages aarch64 test-aarch64 bench keras litert-torch lint style types docs docs-links findings fuzz differential tools clean sizes prose
demo: $(STAMP) tools
	$(BIN)/python tutorials/01_fit_a_network.py --out demo-out

# modules are compiled once, also where PYTHONDONTWRITEBYTECODE has every process of a test compile them anew
test: $(STAMP) tools
	$(BIN)/python -m compileall -q tvm_cascade passes schedules
	$(BIN)/python -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder

# .pt2 files, and PyTorch to compare with: torch is larger than all the rest, so that only their own tests ask for it
TORCH ?= torch
torch: $(STAMP)
	$(BIN)/pip install -q --disable-pip-version-check "$(TORCH)"
	-$(BIN)/pip install -q --disable-pip-version-check torchao

test-torch: torch
	$(BIN)/python -m pytest -m torch -n 2 --dist loadfile --no-loadscope-reorder tests

# code for GPUs, which needs nvcc and no GPU: from PyPI (50 MB) where there is none
cuda: $(STAMP)
	@command -v nvcc >/dev/null || $(BIN)/pip install -q --disable-pip-version-check -e ".[cuda]"

test-cuda: cuda tools
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/runtime/test_cuda_code.py tests/runtime/test_library_kernels.py tests/deploy tests/passes/test_schedule_stages_cuda.py tests/passes/test_stage_precision.py tests/benchmarks/test_gpu_pack.py

# the page of reports in Chromium, which takes 350 MB: the suite reads the page without one
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || sh tools/debian.sh chromium
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null

test-browser: $(STAMP) browser
	$(BIN)/python -m pytest tests/report/test_page_in_browser.py

# exports, by the tools of the systems that they are for: PlatformIO and ESP-IDF's from PyPI, cargo from Debian
packages: $(STAMP)
	$(BIN)/pip install -q --disable-pip-version-check platformio scons idf-component-manager
	@command -v cargo >/dev/null || sh tools/debian.sh cargo
	@command -v cargo >/dev/null

test-packages: packages tools
	$(BIN)/python -m pytest tests/micro/test_packages.py tests/micro/test_platformio_run.py

# folders for 64-bit Arm, run by QEMU's user mode against TVM's libraries of its wheels for aarch64
AARCH64 := $(VENV)/aarch64
$(AARCH64)/.unpacked: $(STAMP)
	$(BIN)/pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 -d $(AARCH64) apache-tvm==$$($(BIN)/python -c "import importlib.metadata as m; print(m.version('apache-tvm'))") apache-tvm-ffi==$$($(BIN)/python -c "import importlib.metadata as m; print(m.version('apache-tvm-ffi'))")
	for wheel in $(AARCH64)/*.whl; do $(BIN)/python -m zipfile -e $$wheel $(AARCH64); done
	touch $@

aarch64: $(AARCH64)/.unpacked
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || sh tools/debian.sh g++-aarch64-linux-gnu qemu-user

test-aarch64: aarch64
	TVM_CASCADE_AARCH64=$(abspath $(AARCH64)) $(BIN)/python -m pytest tests/deploy/test_aarch64.py

# TensorFlow, whose converter writes Keras networks for `make bench`, in an environment of its own; none where it cannot be had
KERAS := $(VENV)-tensorflow/bin/python
keras: $(STAMP)
	-test -e $(KERAS) || { $(PYTHON) -m venv $(VENV)-tensorflow && $(KERAS) -m pip install -q --disable-pip-version-check tensorflow-cpu; }
	TVM_CASCADE_TENSORFLOW=$(KERAS) $(BIN)/python benchmarks/keras_networks.py

# litert-torch, which writes .tflite files of torch modules, in an environment of its own; needs `make torch`
LITERT_TORCH := $(VENV)-litert-torch/bin/python
litert-torch: $(STAMP)
	-test -e $(LITERT_TORCH) || { $(PYTHON) -m venv $(VENV)-litert-torch && $(LITERT_TORCH) -m pip install -q --disable-pip-version-check 'litert-torch==0.10.*'; }
	TVM_CASCADE_LITERT_TORCH=$(abspath $(LITERT_TORCH)) $(BIN)/python benchmarks/ways_in.py

# the tutorials that begin with a training framework or its quantizer, which take 2 GB and minutes: a nightly run has them
training: torch
	$(BIN)/pip install -q --disable-pip-version-check tensorflow-cpu

test-training: training tools
	$(BIN)/python -m pytest tests/tutorials -k "from_pytorch or ai_edge or from_keras"

bench: $(STAMP) tools keras
	TVM_CASCADE_SWEEP=6 $(BIN)/python -m pytest tests/passes/test_lower_quantized_operators.py tests/schedules/test_estimates.py tests/parallel/test_network_schedule.py
	$(BIN)/python benchmarks/run_all.py

# .pt2 files take part after `make torch`
FUZZ_SECONDS ?= 300
fuzz: $(STAMP)
	-$(BIN)/pip install -q --disable-pip-version-check --only-binary :all: atheris
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)

# random networks and operators against the frameworks, from a fresh seed; .pt2 files take part after `make torch`
DIFFERENTIAL_MINUTES ?= 10
differential: $(STAMP) tools
	$(BIN)/python benchmarks/differential.py --minutes $(DIFFERENTIAL_MINUTES)

# surprises of other libraries, each in an environment of its own; says which have changed
findings:
	bash findings/run

lint: style types

# once: it installs the package anew, which nothing may use meanwhile
$(LINTERS): $(STAMP)
	$(BIN)/pip install -q --disable-pip-version-check -e ".[lint]"
	touch $(LINTERS)

style: $(LINTERS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py --gate

# how docstrings read: the share that begins with a verb (a gate of `make style`), and words, by room
prose: $(STAMP)
	$(BIN)/python tools/prose.py

# sizes of rooms, files and functions: a report, no limit
sizes: $(STAMP)
	$(BIN)/python tools/sizes.py

types: $(LINTERS)
	$(BIN)/pyright --pythonpath $(BIN)/python

# the site, in build/docs/html; its pages run commands and tutorials, so that it takes minutes. Any warning ends it
docs: $(STAMP) tools
	$(BIN)/pip install -qq --disable-pip-version-check -e ".[docs]"
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs/doctrees docs build/docs/html
	@echo "build/docs/html/index.html"

# addresses of other sites that its pages link to, which needs a network
docs-links: docs
	$(BIN)/python -m sphinx -q -W --keep-going -b linkcheck -d build/docs/doctrees docs build/docs/links

$(STAMP): setup.py pyproject.toml $(wildcard tvm_cascade/native/*.c) | tools
	$(PYTHON) -m venv $(VENV) || { sh tools/debian.sh python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/pip install -qq --disable-pip-version-check -e ".[test]"
	touch $(STAMP)

# cross compiler and emulator: installed where we may, named where we may not
tools:
	@sh tools/debian.sh

clean:
	rm -rf $(VENV) $(VENV)-tensorflow build demo-out *.egg-info docs/tutorials docs/rfc docs/benchmarks docs/contributing.md docs/changelog.md
