# The short way to everything. CMake does the work; this file only names it.
# JOBS=n sets how many jobs run at once, PREFIX=dir where to install.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
BUILD := build/release

export JOBS

.PHONY: build
build: ## build library, command, examples, tests (what libraries allow)
	@scripts/build.sh release

.PHONY: demo
demo: ## install what is missing, build, play a stream with losses repaired
	@scripts/deps.sh demo
	@scripts/build.sh release -DKVEVENTS_BUILD_TESTS=AUTO -- kvevents
	@scripts/demo.sh $(BUILD)

.PHONY: check
check: ## install what is missing, build, run all short tests
	@scripts/deps.sh check
	@scripts/check.sh

.PHONY: check-long
check-long: ## make check, then the long tests and ten minutes of fuzzing
	@scripts/deps.sh check
	@scripts/check.sh --long

.PHONY: bench
bench: ## all benchmarks, one JSON line a figure
	@scripts/deps.sh bench
	@scripts/bench.sh all

.PHONY: bench-codec bench-stream bench-index bench-service
bench-codec bench-stream bench-index bench-service: bench-%: ## one part
	@scripts/deps.sh bench
	@scripts/bench.sh $*

.PHONY: fuzz
fuzz: ## fuzz every target with libFuzzer; SECONDS=n in all (default 600)
	@scripts/deps.sh check
	@scripts/fuzz.sh $(or $(SECONDS),600)

.PHONY: install
install: build ## install to PREFIX (DESTDIR is honoured)
	cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	cmake --build $(BUILD)
	cmake --install $(BUILD)

.PHONY: format
format: ## lay out every C file by .clang-format
	@scripts/format.sh --write

.PHONY: format-check
format-check: ## say which files make format would change
	@scripts/format.sh --check

.PHONY: clean
clean: ## remove build/
	rm -rf build

.PHONY: help
help: ## this text
	@sed -n 's/^\([a-z][a-z -]*\):.*## \(.*\)/\1|\2/p' Makefile | \
	    awk -F'|' '{ printf "make %-24s %s\n", $$1, $$2 }'
