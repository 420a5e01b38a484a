# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds tf_capsops/libtf_capsops.so and runs what needs it. `make help` says how.
# The same library with Bazel: BUILD. `make studies` builds build/libtf_capsops_studies.so,
# the kernels of other papers, which only benchmarks/papers and its tests load.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory --no-builtin-rules -j$(shell nproc 2>/dev/null || echo 1)
Q := $(if $(V),,@)

# ---- Python ------------------------------------------------------------------------
# PY runs everything. It is, first that applies: what you say; an active virtual
# environment that has TensorFlow, used as it is; else .venv, which we make and keep.
VENV ?= .venv
ACTIVE := $(if $(filter-out $(abspath $(VENV)),$(VIRTUAL_ENV)),$(wildcard $(VIRTUAL_ENV)/bin/python))
ifneq ($(origin PYTHON),undefined)
ACTIVE :=
endif
HAS_TF = $(shell "$(1)" -c 'import importlib.util as u; print(*"y"[:u.find_spec("tensorflow") is not None])')
PY ?= $(if $(and $(ACTIVE),$(call HAS_TF,$(ACTIVE))),$(ACTIVE),$(VENV)/bin/python)
PY := $(PY)
PYTHON ?= $(or $(wildcard $(VENV)/bin/python),python3)

# The stamp carries the version: naming another interpreter makes a new .venv.
ifeq ($(PY),$(VENV)/bin/python)
PYTHON_VERSION := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ENVIRONMENT := $(VENV)/.ready-$(or $(PYTHON_VERSION),missing)
endif

$(VENV)/.ready-%: requirements.txt
	@case "$*" in 3.10|3.11|3.12|3.13) ;; *) echo "tf_capsops needs Python 3.10 to 3.13 (TensorFlow 2.21 has no other wheels); $(PYTHON) is '$*'. Name one: make PYTHON=python3.12" >&2; exit 1;; esac
	@ls $(VENV)/lib/python$*/site-packages >/dev/null 2>&1 || { echo "Creating $(VENV) with Python $*"; "$(PYTHON)" -m venv --clear $(VENV); }
	@rm -f $(VENV)/.ready-*
	$(Q)$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

# ---- Tests of the tests ------------------------------------------------------------
# Builds of their own, for the tests alone:
#   SANITIZE=address,undefined  finds bad memory and undefined behavior, and counts the
#                               lines that run; for the CPU only
#   SANITIZE=thread             finds data races in tests/sanitizers/launchers.cc, for
#                               TensorFlow is not instrumented; for the CPU only
#   make faults                 has the faults on purpose of cc/launch/faults.h
# COVERAGE=1 has `make test` report the lines of Python that ran, and with
# SANITIZE=address,undefined those of C++.
MEMORY := address,undefined
ifneq ($(filter-out $(MEMORY) thread,$(SANITIZE))$(filter-out 0 1,$(words $(SANITIZE))),)
$(error SANITIZE must be $(MEMORY) or thread, got '$(SANITIZE)')
endif
comma := ,
COUNTS_LINES := $(filter $(MEMORY),$(SANITIZE))
FAULTS := $(filter faults,$(MAKECMDGOALS))
DEFINE_FAULTS := $(if $(FAULTS),-DCAPSOPS_FAULTS=1)

BUILD := build$(if $(SANITIZE),/sanitize-$(subst $(comma),-,$(SANITIZE)),$(if $(FAULTS),/faults))
OPTIMIZE := $(if $(SANITIZE),-O1 -g1 -fsanitize=$(SANITIZE) -fno-sanitize-recover=undefined,$(if $(FAULTS),-O1,-O3))$(if $(COUNTS_LINES), --coverage)

# ---- CUDA --------------------------------------------------------------------------
# CUDA=auto builds for the GPUs that nvidia-smi sees, and for the CPU only where it sees
# none. CUDA=1 and `make wheel` build for all of EVERY_ARCH. CUDA_ARCHS names others, and
# stands for CUDA=1 too. Each gets machine code if nvcc knows it, and the newest of them
# PTX for the GPUs to come. 90 is built as 90a, with the warpgroup instructions that only
# 9.0 has.
EVERY_ARCH := 80 90 100 120
CUDA ?= $(if $(filter wheel,$(MAKECMDGOALS)),1,auto)
ifneq ($(filter-out auto 0 1,$(CUDA))$(filter-out 1,$(words $(CUDA))),)
$(error CUDA must be auto, 0 or 1, got '$(CUDA)')
endif
WANTED := $(if $(SANITIZE),0,$(if $(strip $(CUDA_ARCHS)),$(CUDA:auto=1),$(CUDA)))
ifeq ($(WANTED),auto)
GPUS := $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p'))
endif
ifneq ($(filter 1,$(WANTED))$(GPUS),)
NVCC ?= $(firstword $(wildcard $(CUDA_HOME:=/bin/nvcc)) $(if $(CUDA_HOME),,$(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))
NVCC_VERSION := $(if $(NVCC),$(shell "$(NVCC)" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'))
ifneq ($(NVCC_VERSION),)
WITH_CUDA := 1
else ifeq ($(WANTED),1)
$(error No nvcc was found$(if $(NVCC), at $(NVCC))$(if $(CUDA_HOME), in CUDA_HOME=$(CUDA_HOME)): install the CUDA toolkit, set CUDA_HOME or NVCC, or build for the CPU only with CUDA=0)
endif
endif
BUILT = $(if $(WITH_CUDA),with CUDA $(NVCC_VERSION) for $(ARCHS),for the CPU only$(if $(filter auto,$(WANTED)), ($(if $(GPUS),there is a GPU but no nvcc: install the CUDA toolkit,no GPU is visible: CUDA=1 builds the CUDA kernels all the same))))
ifdef WITH_CUDA
# A package's nvcc may be a wrapper, so nvcc itself says where its toolkit is.
CUDA_TOP := $(shell "$(NVCC)" --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^\#\$$ TOP=//p')
CUDART := $(firstword $(foreach d,lib64 lib targets/*/lib,$(wildcard $(CUDA_TOP)/$(d)/libcudart_static.a)))
KNOWN := $(shell "$(NVCC)" --list-gpu-code)
KNOWN_OF = $(foreach a,$(1),$(if $(filter sm_$(a),$(KNOWN)),$(a)))
# Where nvcc is older than the GPU, PTX of the newest that it knows serves.
ARCHS := $(or $(call KNOWN_OF,$(or $(strip $(CUDA_ARCHS)),$(GPUS))),$(if $(strip $(CUDA_ARCHS)),,$(call KNOWN_OF,$(EVERY_ARCH))))
NEWEST := $(lastword $(shell printf '%s\n' $(ARCHS) | sort -n))
ifeq ($(ARCHS),)
$(error CUDA_ARCHS="$(or $(strip $(CUDA_ARCHS)),$(EVERY_ARCH))" holds nothing that $(NVCC) $(NVCC_VERSION) knows: $(KNOWN))
endif
ifeq ($(CUDART),)
$(error $(NVCC) has no libcudart_static.a under $(CUDA_TOP): install the CUDA toolkit's cudart development files, or build with CUDA=0)
endif
endif

# ---- The library -------------------------------------------------------------------
LIBRARY := $(if $(SANITIZE)$(FAULTS),$(BUILD),tf_capsops)/libtf_capsops.so
STUDIES := $(BUILD)/libtf_capsops_studies.so
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tf_capsops/_version.py)

# TensorFlow's side has no hot loops, so it is compiled in less time.
OPTIMIZE_tensorflow := $(if $(SANITIZE),$(OPTIMIZE:-O1=-O0),$(OPTIMIZE:-O3=-O1))

# One source, several instruction sets; cc/cpu/dispatch chooses at load time.
ISAS := $(if $(filter x86_64,$(shell uname -m)),v2 v3 v4,baseline)
MARCH_v2 := -march=x86-64-v2
MARCH_v3 := -march=x86-64-v3
MARCH_v4 := -march=x86-64-v4 -mprefer-vector-width=512

COMMON := -std=c++17 -DNDEBUG -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -Wall -Wextra $(DEFINE_FAULTS) -I.
DEPS = -MMD -MP -MF $(@:.o=.d)
FLAGS_cpu := $(OPTIMIZE) $(COMMON) -ffp-contract=fast -Wno-psabi $(CXXFLAGS)
FLAGS_tensorflow := $(OPTIMIZE_tensorflow) $(COMMON) -Wno-unused-parameter $(if $(WITH_CUDA),-DTF_CAPSOPS_CUDA=1) \
  '-DTF_CAPSOPS_VERSION="$(VERSION)"' '-DTF_CAPSOPS_CUDA_VERSION="$(NVCC_VERSION)"' \
  '-DTF_CAPSOPS_CUDA_ARCHS="$(strip $(ARCHS))"' $(CXXFLAGS)
# With GCC's checks of null, no address of a function is the constant that TensorFlow's
# headers want it to be.
ifdef SANITIZE
FLAGS_tensorflow += -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute
endif
# nvcc's -O is for the host's side; kernels are optimized in any case.
FLAGS_cuda := -x cu -std=c++17 -O1 -DNDEBUG $(DEFINE_FAULTS) --expt-relaxed-constexpr -lineinfo -ccbin $(CXX) \
  -Xcompiler -fPIC,-fvisibility=hidden -Xfatbin -compress-all --threads 0 -I. \
  $(foreach a,$(ARCHS:90=90a),-gencode arch=compute_$(a),code=sm_$(a)) \
  $(if $(filter 0,$(CUDA_PTX)),,-gencode arch=compute_$(NEWEST)$(comma)code=compute_$(NEWEST)) $(NVCCFLAGS)

# A function that several instruction sets define inline is kept from the first object
# that has it. So the most modest come first: no AVX-512 copy serves an older processor.
OBJECTS_tensorflow := $(patsubst %.cc,$(BUILD)/%.o,$(wildcard cc/xla/*.cc cc/launch/*.cc))
# TensorFlow's headers take longer to parse than the files of these folders, so two
# folders are one translation unit.
UNITS := ops+kernels framework+shapes
UNITY := $(UNITS:%=$(BUILD)/cc/%.o)
OBJECTS_dispatch := $(patsubst %.cc,$(BUILD)/%.o,$(wildcard cc/cpu/dispatch/*.cc))
# Folders of kernel paths come first: they take longest, and all cores stay busy to the end.
OBJECTS_cuda := $(if $(WITH_CUDA),$(patsubst %.cc,$(BUILD)/%.o,$(filter-out cuda/studies/%,$(wildcard cuda/*/*/*.cu.cc cuda/*/*.cu.cc))))
OBJECTS_cpu := $(foreach i,$(ISAS),$(patsubst cc/cpu/%.cc,$(BUILD)/cc/cpu/$(i)/%.o,$(wildcard cc/cpu/*.cc)))
ifneq ($(COUNTS_LINES),)
OBJECTS_dispatch += $(BUILD)/tests/sanitizers/coverage.o
endif
ifneq ($(FAULTS),)
OBJECTS_dispatch += $(BUILD)/tests/faults/faults.o
OBJECTS_cuda += $(if $(WITH_CUDA),$(BUILD)/tests/faults/faults.cu.o)
endif
OBJECTS := $(UNITY) $(OBJECTS_tensorflow) $(OBJECTS_dispatch) $(OBJECTS_cuda) $(OBJECTS_cpu)

# The studies share the shape rules of the ops they are named after.
ifdef WITH_CUDA
STUDIES_tensorflow := $(patsubst %.cc,$(BUILD)/%.o,$(wildcard cc/studies/*.cc))
STUDIES_cuda := $(patsubst %.cc,$(BUILD)/%.o,$(wildcard cuda/studies/*.cu.cc))
STUDIES_OBJECTS := $(STUDIES_tensorflow) $(STUDIES_cuda) \
  $(addprefix $(BUILD)/,cc/framework+shapes.o cc/launch/choice.o cuda/common/device.cu.o)
endif

# The launchers in a program of their own, without TensorFlow: `make test SANITIZE=...`.
LAUNCHERS := $(BUILD)/tests/sanitizers/launchers
LAUNCHERS_OBJECTS := $(LAUNCHERS).o $(OBJECTS_cpu) $(OBJECTS_dispatch) $(BUILD)/cc/launch/choice.o

# The same on a GPU: `make gpu-checks`. The linker shows it the launches of kernels.
GPU_LAUNCHERS := $(BUILD)/tests/sanitizers/gpu_launchers
ifdef WITH_CUDA
GPU_LAUNCHERS_cc := $(patsubst %.cc,$(BUILD)/%.o,$(filter-out %.cu.cc,$(wildcard tests/sanitizers/gpu_*.cc)))
GPU_LAUNCHERS_cuda := $(patsubst %.cc,$(BUILD)/%.o,$(wildcard tests/sanitizers/gpu_*.cu.cc))
GPU_LAUNCHERS_OBJECTS := $(GPU_LAUNCHERS_cc) $(GPU_LAUNCHERS_cuda) $(OBJECTS_cuda) $(OBJECTS_cpu) $(OBJECTS_dispatch) $(BUILD)/cc/launch/choice.o
GPU_LAUNCHERS_LINK = $(foreach f,__cudaRegisterFunction __cudaGetKernel cudaLaunchKernelExC,-Wl,--wrap=$(f))
endif

# cudart stands before TensorFlow, whose GPU wheel exports stubs of the same names: taken
# from there, the library would not load beside tensorflow-cpu. No RPATH: whoever loads
# an op library has loaded TensorFlow. gold reads TensorFlow's symbols in a quarter of
# the time; with CUDA's code it is untried.
LINKER := $(if $(WITH_CUDA),,$(if $(shell command -v ld.gold),-fuse-ld=gold))
LINK = $(CXX) -shared $(LINKER) -Wl,--gc-sections -Wl,--exclude-libs,libcudart_static.a:libgcov.a -Wl,--no-undefined $(if $(SANITIZE),-fsanitize=$(SANITIZE) $(if $(COUNTS_LINES),--coverage),-s) \
  $(1) $(CUDART) @$(BUILD)/tensorflow.ldflags -ldl -lpthread -lrt $(LDFLAGS)

# A file for each kind of command line, rewritten only when the command line changes;
# what was made with it depends on it.
$(BUILD)/flags.%: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(call QUOTE,$(TEXT)) | cmp -s - $@ || printf '%s\n' $(call QUOTE,$(TEXT)) >$@
QUOTE = '$(subst ','\'',$(1))'
COMPILER := $(CXX) $(shell $(CXX) --version 2>/dev/null | head -n 1)
$(BUILD)/flags.cpu: TEXT = $(COMPILER) $(FLAGS_cpu) $(foreach i,$(ISAS),$(MARCH_$(i)))
$(BUILD)/flags.tensorflow: TEXT = $(COMPILER) $(FLAGS_tensorflow)
# nvcc adds these from the environment.
$(BUILD)/flags.cuda: TEXT = $(COMPILER) $(NVCC) $(NVCC_VERSION) $(NVCC_PREPEND_FLAGS) $(FLAGS_cuda) $(NVCC_APPEND_FLAGS)
$(BUILD)/flags.link: TEXT = $(COMPILER) $(call LINK,$(OBJECTS))
$(BUILD)/flags.link_studies: TEXT = $(COMPILER) $(call LINK,$(STUDIES_OBJECTS))

# Likewise TensorFlow's own flags, which come with this file: tensorflow.{cflags,ldflags}.
$(BUILD)/tensorflow.key: FORCE $(ENVIRONMENT)
	$(Q)$(PY) tools/tensorflow_config.py --write $(BUILD)

# How far a build is: "[12/40] CXX   cc/ops/inq_conv.cc", of all there is to compile.
STEPS := $(words $(sort $(if $(filter thread,$(SANITIZE)),,$(OBJECTS)) $(if $(SANITIZE),$(LAUNCHERS_OBJECTS)) \
  $(if $(filter studies papers test-all,$(MAKECMDGOALS)),$(STUDIES_OBJECTS)) \
  $(if $(filter gpu-checks $(GPU_LAUNCHERS),$(MAKECMDGOALS)),$(GPU_LAUNCHERS_OBJECTS))))
SAY = $(eval STARTED += x)$(if $(V),,@echo "[$(words $(STARTED))/$(STEPS)] $(1)")

$(OBJECTS_tensorflow) $(STUDIES_tensorflow): $(BUILD)/%.o: %.cc $(BUILD)/flags.tensorflow $(BUILD)/tensorflow.key
	@mkdir -p $(@D)
	$(call SAY,CXX   $<)
	$(Q)$(CXX) $(FLAGS_tensorflow) @$(BUILD)/tensorflow.cflags $(DEPS) -c $< -o $@

define unity_rule
$(BUILD)/cc/$(1).o: $(wildcard $(patsubst %,cc/%/*.cc,$(subst +, ,$(1)))) $(BUILD)/flags.tensorflow $(BUILD)/tensorflow.key
	@mkdir -p $$(@D)
	$$(call SAY,CXX   cc/$(1))
	$$(Q)$$(CXX) $$(FLAGS_tensorflow) @$$(BUILD)/tensorflow.cflags $$(DEPS) $$(addprefix -include ,$$(filter cc/%.cc,$$^)) -x c++ -c /dev/null -o $$@
endef
$(foreach unit,$(UNITS),$(eval $(call unity_rule,$(unit))))

$(OBJECTS_dispatch) $(LAUNCHERS).o $(GPU_LAUNCHERS_cc): $(BUILD)/%.o: %.cc $(BUILD)/flags.cpu
	@mkdir -p $(@D)
	$(call SAY,CXX   $<)
	$(Q)$(CXX) $(FLAGS_cpu) $(DEPS) -c $< -o $@
$(GPU_LAUNCHERS_cc): private FLAGS_cpu += -isystem $(CUDA_TOP)/include

define cpu_rule
$(BUILD)/cc/cpu/$(1)/%.o: cc/cpu/%.cc $(BUILD)/flags.cpu
	@mkdir -p $$(@D)
	$$(call SAY,CXX   $$< ($(1)))
	$$(Q)$$(CXX) $$(FLAGS_cpu) $$(MARCH_$(1)) -DCAPSOPS_ISA=$(1) $$(DEPS) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(eval $(call cpu_rule,$(i))))

$(OBJECTS_cuda) $(STUDIES_cuda) $(GPU_LAUNCHERS_cuda): $(BUILD)/%.o: %.cc $(BUILD)/flags.cuda
	@mkdir -p $(@D)
	$(call SAY,NVCC  $<)
	$(Q)$(NVCC) $(FLAGS_cuda) $(DEPS) -c $< -o $@

# Moved into place when whole: somebody may be loading it. A build for the CPU only leaves
# no studies of an earlier one.
define link_to
	$(Q)$(call LINK,$(1)) -o $(BUILD)/$(@F).new
	@mv $(BUILD)/$(@F).new $@
	@echo "Built $@ $(BUILT)"
endef
$(LIBRARY): $(OBJECTS) $(BUILD)/flags.link $(BUILD)/tensorflow.key
	$(call link_to,$(OBJECTS))
	$(if $(WITH_CUDA),,@rm -f $(STUDIES))

$(LAUNCHERS): $(LAUNCHERS_OBJECTS)
	$(Q)$(CXX) $(OPTIMIZE) $^ -lpthread $(LDFLAGS) -o $@

ifdef WITH_CUDA
$(GPU_LAUNCHERS): $(GPU_LAUNCHERS_OBJECTS)
	$(Q)$(CXX) $(GPU_LAUNCHERS_LINK) $^ $(CUDART) -ldl -lpthread -lrt $(LDFLAGS) -o $@

$(STUDIES): $(STUDIES_OBJECTS) $(BUILD)/flags.link_studies $(BUILD)/tensorflow.key
	$(call link_to,$(STUDIES_OBJECTS))
endif

-include $(OBJECTS:.o=.d) $(LAUNCHERS).d $(GPU_LAUNCHERS_cc:.o=.d) $(GPU_LAUNCHERS_cuda:.o=.d) $(STUDIES_tensorflow:.o=.d) $(STUDIES_cuda:.o=.d)

# ---- What to do --------------------------------------------------------------------
# ARGS goes to the program that the target runs: make test ARGS="-k gradient"
CAPSOPS := $(PY) -m tf_capsops
# As many processes as cores: more threads than one, $(1), wait for each other.
PYTEST = TF_NUM_INTRAOP_THREADS=$(1) $(PY) -m $(COUNTED)pytest -n auto --dist worksteal $(if $(COVERAGE),--ci)
ifneq ($(COVERAGE),)
COUNTED := $(if $(SANITIZE),,coverage run -m )
export COVERAGE_FILE := $(abspath $(BUILD))/coverage/python
endif
# ThreadSanitizer cannot do with the randomness of addresses that newer systems have.
LESS_RANDOM = $(shell setarch -R true 2>/dev/null && echo setarch -R)
# Python and TensorFlow know nothing of sanitizers, so those come before them, with the
# C++ library whose exceptions they watch.
UNDER_SANITIZERS = LD_PRELOAD="$(foreach l,asan ubsan stdc++,$(shell $(CXX) -print-file-name=lib$(l).so))" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TF_CAPSOPS_LIBRARY=$(abspath $(LIBRARY))
# Every op and every path of its kernels, those of older processors included, and every
# rule of shapes. Not what runs these kernels once more: for other numbers, which have no
# other addresses, or in another program; and no rivals, which have nothing of ours.
REPEATING := xla or rivals or maps or higher_derivatives or half_types_accumulate or same_bits or bad_numbers_stay or saved_model
SANITIZED_TESTS := $(addprefix tests/ops/,test_every_op.py test_*_robust.py test_*_op.py test_*_shapes.py test_*_types.py test_faults.py test_threads.py) -k "not ($(REPEATING))"
ON_FAULTS := TF_CAPSOPS_LIBRARY=$(abspath $(LIBRARY)) TF_NUM_INTRAOP_THREADS=1
PAGES := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md THIRD_PARTY_LICENSES.md docs
CXX_FILES = $(shell find cc cuda tests -name '*.h' -o -name '*.cc' -o -name '*.cuh')

.PHONY: help demo test gpu-checks test-all coverage faults build studies bench papers wheel docs format lint requirements clean FORCE
FORCE:

demo: build  ## train on handwritten digits, evaluate, draw reconstructions (runs/digits)
	$(CAPSOPS) train --data digits --epochs 30 $(ARGS)
	$(CAPSOPS) evaluate
	$(CAPSOPS) reconstruct

ifndef SANITIZE
test: build  ## run the tests, of each grid of sizes and types a selection; ARGS="-k name" picks some
	@$(if $(COVERAGE),rm -rf $(BUILD)/coverage && mkdir $(BUILD)/coverage)
	$(call PYTEST,1) $(ARGS)
	$(if $(COVERAGE),$(Q)$(PY) -m coverage combine --quiet && $(PY) -m coverage report)
else
test: $(LAUNCHERS) $(if $(filter thread,$(SANITIZE)),,build)
	@$(if $(COVERAGE),find $(BUILD) -name '*.gcda' -delete)
	$(Q)for level in 2 3 4 5; do TSAN_OPTIONS=halt_on_error=1 TF_CAPSOPS_CPU_LEVEL=$$level $(LESS_RANDOM) $(LAUNCHERS) || exit 1; done
	$(if $(filter thread,$(SANITIZE)),,$(UNDER_SANITIZERS) $(call PYTEST,1) --capture=sys $(or $(ARGS),$(SANITIZED_TESTS)))
	$(if $(COVERAGE),$(Q)$(PY) -m gcovr $(BUILD))
endif

gpu-checks: $(if $(WITH_CUDA),$(GPU_LAUNCHERS))  ## run every GPU kernel under compute-sanitizer, and look for results that vary
	@$(if $(WITH_CUDA),:,echo "The GPU checks need CUDA, and this builds $(BUILT)" >&2; exit 1)
	$(PYTHON) tests/sanitizers/gpu_checks.py $(GPU_LAUNCHERS) $(ARGS)

test-all: build $(if $(WITH_CUDA),studies)  ## run all tests: whole grids, other papers' kernels, ops under XLA
	$(call PYTEST,2) --all $(ARGS)
	$(call PYTEST,1) --jit $(or $(ARGS),tests/ops)

coverage:  ## fail where the tests leave out over 5% of the lines of tf_capsops/ or of cc/
	$(MAKE) test COVERAGE=1
	$(MAKE) test COVERAGE=1 SANITIZE=$(MEMORY)

faults: build  ## show which test notices each wrong kernel and each rule left out; ARGS="--device GPU"
	$(ON_FAULTS) $(PY) tools/faults.py kernels $(ARGS)
	$(ON_FAULTS) $(PY) tools/faults.py rules $(ARGS)

build: $(ENVIRONMENT) $(LIBRARY)  ## create .venv and build the library, nothing else

studies: $(if $(WITH_CUDA),build $(STUDIES))  ## build the kernels of other papers, which need CUDA
	@$(if $(WITH_CUDA),:,echo "The studies need CUDA, and this builds $(BUILT)" >&2; exit 1)

bench: build  ## time the ops against plain TensorFlow
	$(CAPSOPS) bench $(ARGS)

papers: build $(if $(WITH_CUDA),studies)  ## time the ops against other papers' kernels
	$(PY) -m benchmarks.papers $(ARGS)

# Its tag names the oldest glibc that the library runs with; a package index admits no other
# wheels, and none over 100 MB. TensorFlow's own libraries are TensorFlow's to bring.
wheel: build  ## pack the wheel, for all architectures, and the source distribution into dist/
	@rm -rf $(BUILD)/wheel
	$(PY) -m build --no-isolation --sdist --outdir dist
	CUDA=$(CUDA) PY="$(abspath $(PY))" TF_CAPSOPS_LOCAL=$(if $(WITH_CUDA),,+cpu) \
	  $(PY) -m build --no-isolation --wheel --outdir $(BUILD)/wheel
	PATH="$(abspath $(dir $(PY))):$$PATH" $(PY) -m auditwheel repair --exclude 'libtensorflow*' \
	  --wheel-dir dist $(BUILD)/wheel/*.whl
	$(Q)! find dist -name '*.whl' -size +99999999c | grep . || { echo "A wheel must be smaller than 100 MB" >&2; exit 1; }

docs: $(ENVIRONMENT)  ## make the documentation's site, build/site
	$(PY) -m sphinx -W --keep-going -q -j auto docs $(BUILD)/site

format: $(ENVIRONMENT)  ## format the sources and the pages
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(dir $(PY))clang-format -i $(CXX_FILES)
	$(PY) -m mdformat $(PAGES)

lint: $(ENVIRONMENT)  ## check layout, common mistakes, and the tables of measured numbers
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) tools/measured.py --check
	$(PY) -m mdformat --check $(PAGES)
	$(Q)$(dir $(PY))clang-format --dry-run -Werror $(CXX_FILES)

requirements:  ## pin requirements.in again with hashes, for Python 3.10 to 3.13 at once (needs uv)
	uv pip compile --universal --python-version 3.10 --upgrade --generate-hashes --no-annotate \
	  --custom-compile-command "make requirements" --quiet requirements.in -o requirements.txt

clean:  ## remove what was built (.venv and runs/ stay)
	rm -rf $(BUILD) dist $(LIBRARY)

help:
	@echo "Usage: make TARGET [VARIABLE=value ...]"
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16
	@echo "Variables:"
	@printf '  %-14s%s\n' \
	  PYTHON "interpreter to make .venv with ($(PYTHON))" \
	  CUDA "auto: for the GPUs that are here; 1: for $(EVERY_ARCH); 0: without" \
	  "" "(now $(BUILT))" \
	  CUDA_ARCHS "other GPU architectures than those, such as \"89 90\"" \
	  CUDA_PTX "0: no PTX for GPUs to come, which takes a third of the time of nvcc" \
	  CUDA_HOME "the CUDA toolkit; or NVCC, its compiler" \
	  CXX "C++ compiler ($(CXX)); CXXFLAGS, NVCCFLAGS and LDFLAGS add to ours" \
	  ARGS "passed on to pytest, the demo, the benchmark" \
	  SANITIZE "address,undefined or thread: make test finds bad memory, or data races" \
	  COVERAGE "1: make test reports the lines that ran, of C++ with SANITIZE=address,undefined" \
	  V "1 shows every command"
