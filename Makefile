# The short way to everything. `make help` lists it; the work is done by CMake presets and tools/.

PREFIX ?= /usr/local
FUZZ_SECONDS ?= 30

.DEFAULT_GOAL := all
.PHONY: all dev demo test test-quick test-long asan tsan bench coverage fuzz format check install docs clean help deps build-deps

all: build-deps  ## build the program (build/release/plimsoll)
	@tools/build release program

dev: build-deps  ## build with assertions and debug information (build/dev)
	@tools/build dev program

demo: all        ## see it work
	@demo/run.sh

test: deps       ## everything: checks, all tests, and unit and fault tests under the sanitizers
	@tools/test-all

test-quick: deps ## unit, op and cli tests of the release build, without the slow ones
	@tools/build release
	@tools/run-tests --quick build/release unit op cli

.PHONY: test-live
test-live: build-deps ## comparisons with PyTorch, transformers and sentence-transformers as PyPI has them (a large download, once)
	@tools/deps.sh live
	@tools/build release
	@tools/run-tests --live build/release golden cli

test-long: deps  ## unit tests with every case; ranks in full: every family of models at every stage, kills at 40 points (hours on two cores); packages made twice and installed; CUDA kernels on the CPU, code for 9.0 too; the list of planted bugs
	@tools/build release
	@tools/build release cuda_on_cpu_90_tests
	@CUDA_CPU_CASES=120 tools/run-tests build/release op -k cuda_on_cpu
	@PLIMSOLL_LONG_TESTS=1 tools/run-tests build/release unit
	@PLIMSOLL_LONG_TESTS=1 tools/run-tests build/release fault -k 'ranks|planner_memory|stated_minimum'
	@PLIMSOLL_LONG_TESTS=1 tools/run-tests build/release cli -k 'packages|bench_gpu$$|plan_report'
	@tools/plant --check

asan: deps       ## unit and fault tests with the address and undefined-behaviour sanitizers
	@tools/build asan
	@tools/run-tests build/asan unit fault

tsan: deps       ## unit and fault tests with the thread sanitizer
	@tools/build tsan
	@tools/run-tests build/tsan unit fault

bench: build-deps ## build the benchmarks (build/release/bench_*)
	@tools/build release bench
	@for program in build/release/bench_*; do [ ! -x "$$program" ] || echo "run: $$program"; done

coverage: deps   ## which lines of src/ the tests reach
	@tools/build coverage
	@find build/coverage -name '*.gcda' -delete
	@tools/run-tests build/coverage || true
	@tools/coverage build/coverage

fuzz:            ## fuzz each target for FUZZ_SECONDS (30)
	@tools/deps.sh fuzz
	@tools/build fuzz
	@tools/run-fuzz $(FUZZ_SECONDS)

format:          ## lay out the C files as .clang-format says
	@tools/check-format --fix

check:           ## layers, nothing of the process below cli, headers compile alone, length of functions, layout, words (quick, no build)
	@tools/check-layers
	@tools/check-library
	@tools/check-headers
	@tools/check-functions
	@tools/check-format || [ $$? -eq 77 ]
	@tools/check-words

install: build-deps ## install below PREFIX (/usr/local); DESTDIR is honoured
	@PLIMSOLL_FAULTS=OFF tools/build release program
	@cmake --install build/release --prefix "$(PREFIX)"

# The folder below PREFIX that Python searches for packages.
PYTHON_DIR ?= $(shell python3 -c "import sys; own = [p for p in sys.path if p.startswith('$(PREFIX)/') and p.endswith('-packages')]; print(own[0] if own else '$(PREFIX)/lib/python3/dist-packages')")

.PHONY: install-python wheel deb tarball
install-python: install ## make install, and the Python package into PYTHON_DIR
	@cmake --install build/release --component python --prefix "$(PYTHON_DIR)"

wheel: all       ## the Python package as a wheel (build/wheel)
	@tools/make-wheel

deb: build-deps  ## Debian packages: program, library, development files, Python (build/deb)
	@tools/build package program
	@tools/make-deb

tarball:         ## the source of the last commit (build/tarball)
	@mkdir -p build/tarball
	@name=plimsoll-$$(tools/version) && git -c tar.umask=0022 archive --prefix=$$name/ HEAD | gzip -9n >build/tarball/$$name.tar.gz && \
	    echo build/tarball/$$name.tar.gz

docs: all        ## man page and shell completions (build/release/docs)
	@tools/build release docs

clean:           ## remove build/
	@rm -rf build

help:            ## this list
	@awk -F':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-12s%s\n", $$1, $$2 }' Makefile

deps:
	@tools/deps.sh test

build-deps:
	@tools/deps.sh build
