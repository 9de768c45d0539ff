# ordack: every job of the project. `make help` lists them. Each does the set-up it needs; see firmware/ports/setup.sh.

SETUP ?= firmware/ports/setup.sh
PYTHON_VENV := $(CURDIR)/.venv/bin/python
C_CORE := $(MAKE) --no-print-directory -C c_core PYTHON=$(PYTHON_VENV)
NATIVE := $(MAKE) --no-print-directory -C host/native PYTHON=$(PYTHON_VENV)
C_FILES = $(shell find c_core firmware hil host/native tests/c -name '*.[ch]')
MESSAGES ?= 1000
CUTS ?= 50
WHEELS ?= build/wheel
RELEASE := build/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PIP = $(PYTHON_VENV) -m pip --disable-pip-version-check
KILLS ?= 5
STEPS ?= 1000000
OVER_TLS = $(if $(BOARD),,unix)
SITE = *.md LICENSE */README.md */*/README.md host/docs firmware/docs host/examples firmware/examples \
	firmware/ports/mps2 firmware/ports/natmod tests/bench/boards.c
BROKE_BEFORE = $(if $(BOARD),,$(foreach link,eth uart,mps2-$(link):erase-fixed $(addprefix mps2-$(link):,offline full)) mps2-eth:copy mps2-eth:restore)

# Containers set it; then every process of the tests compiles all that it imports, and pytest rewrites all of its tests
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run hil pipeline test test-fast test-c lint format planted powercuts mutants model audits conformance bench docs wheel deb release firmware clean setup-docs setup-release setup-test setup-bench setup-firmware

help: ## list the jobs
	@awk -F ' *##@? ' '/^##@ / { print "\n" $$2 } /^[a-z0-9-]+:.* ## / { sub(/:.*/, "", $$1); printf "  make %-12s %s\n", $$1, $$2 }' \
		$(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=          the Python to use (3.11 or newer; default python3)"
	@echo "  MICROPYTHON_DIR= a MicroPython checkout (1.25 or newer) to use instead of Debian's source package"

##@ Use it

setup: ## install programs, .venv with .venv/bin/ordack, and MicroPython under build/
	@$(SETUP) run

setup-test:
	@$(SETUP) test

setup-bench:
	@$(SETUP) bench

setup-release:
	@$(SETUP) release

setup-docs:
	@$(SETUP) docs

setup-firmware:
	@$(SETUP) firmware

run: $(if $(filter mps2%,$(BOARD)),setup-firmware,setup) ## send readings over a link that keeps breaking, and count them (SEED= MESSAGES= CUTS= KILLS= BOARD=)
	@$(PYTHON_VENV) -m hil.campaign --messages $(MESSAGES) --cuts $(CUTS) --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(if $(BOARD),--board '$(BOARD)')

hil: setup-test ## run a campaign on every emulated board, or on the boards of a file (SEED= LG_ENV= BOARD=)
	@$(PYTHON_VENV) -m pytest -q -n 2 hil/test_exactly_once.py $(if $(LG_ENV),--lg-env $(LG_ENV)) --messages 200 $(if $(BOARD),-k '$(BOARD)') $(if $(SEED),--seed $(SEED))
	@for board in $(OVER_TLS); do \
		$(PYTHON_VENV) -m hil.campaign --board $$board --tls --messages 200 --cuts 20 --kills 3 $(if $(SEED),--seed $(SEED)) || exit 1; \
	done
	@for sequence in $(BROKE_BEFORE); do \
		$(PYTHON_VENV) -m hil.campaign --board $${sequence%:*} --mishap $${sequence#*:} --messages 500 --max-size 200 --cuts 0 --kills 3 --patience 120 $(if $(SEED),--seed $(SEED)) || exit 1; \
	done

planted: setup-test ## plant faults in copies of the node and the queue manager; campaigns find each
	@$(PYTHON_VENV) -m pytest -q -s hil/test_planted.py

pipeline: setup-test ## carry messages from a board to a Spark table, and kill every process on the way (SEED= MESSAGES= KILLS=)
	@$(PYTHON_VENV) -m hil.pipeline --messages $(MESSAGES) --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(if $(BOARD),--board '$(BOARD)')
	@$(PYTHON_VENV) -m tests.pipeline.lake_kills $(if $(SEED),--seed $(SEED))
	@$(PYTHON_VENV) -m tests.pipeline.test_cluster $(SEED)

##@ Check it

test: setup-test ## run all tests, and print a summary
	@$(PYTHON_VENV) -m tests.run_all

test-fast: setup-test ## test core, engine and host in about a minute: without kills, Spark, QEMU and browser
	@$(PYTHON_VENV) -m tests.run_all --fast

test-c: setup-test ## test the C code: two compilers, sanitizers, big-endian, coverage, size, lint (RUNS= of libFuzzer, SEED=)
	@$(C_CORE) all-tests $(if $(RUNS),fuzz)
	@$(NATIVE) all-tests $(if $(RUNS),fuzz)

lint: setup-test ## check the form of Python and C, types, and commit subjects
	@$(PYTHON_VENV) tests/subjects.py
	@.venv/bin/ruff format --check .
	@.venv/bin/clang-format --dry-run --Werror $(C_FILES)
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/mypy --config-file firmware/mypy.ini

format: setup-test ## generate the tables of mqqb.h, and format every Python and C file
	@.venv/bin/python c_core/layout.py
	@.venv/bin/python host/reference.py
	@.venv/bin/python firmware/reference.py
	@.venv/bin/ruff format .
	@.venv/bin/clang-format -i $(C_FILES)

##@ Slow proofs

powercuts: setup-test ## cut the power of outboxes and stores at their writes (SEED= CUTS=)
	@$(PYTHON_VENV) -m tests.powercuts $(if $(filter command line environment,$(origin CUTS)),$(CUTS),100000) $(SEED)

mutants: setup-test ## break the C code and the engine in many ways; tests must fail each time (SAMPLE= SEED=)
	@$(C_CORE) mutants
	@$(NATIVE) mutants
	@$(PYTHON_VENV) tests/mutants.py $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

model: setup-test ## check a stream in all its states, then run 10^6 steps of queue managers with accidents (SEED= STEPS=)
	@$(PYTHON_VENV) tests/engine/spin/check.py --full
	@$(PYTHON_VENV) -m tests.host.model --steps $(STEPS) $(if $(SEED),--seed $(SEED))

audits: setup-test ## audit generated captures: planted violations are found, none is invented (SEED= COUNT=)
	@$(PYTHON_VENV) -m tests.audit.test_audit_generated $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

conformance: setup-test ## list the rules of the specification with their tests in tests/CONFORMANCE.md
	@$(PYTHON_VENV) tests/conformance.py

##@ Measure and build

docs: setup-docs ## build the pages as a site in build/docs/site/, and check every link (SERVE=1 also serves it)
	@rm -rf build/docs
	@mkdir -p build/docs/pages
	@find $(SITE) $(MORE) -type f -not -path 'build/*' -not -name '*.pyc' -exec cp --parents -t build/docs/pages {} +
	@awk '!/^ +- .*\.md$$/ || !system("test -e build/docs/pages/" $$NF)' mkdocs.yml >build/docs/mkdocs.yml # pages that are there
	@NO_MKDOCS_2_WARNING=1 $(PYTHON_VENV) -m mkdocs build -f build/docs/mkdocs.yml >build/docs/log 2>&1 || { grep -v ^INFO build/docs/log >&2; exit 1; }
	@echo "build/docs/site/index.html"
	@$(if $(SERVE),$(PYTHON_VENV) -m http.server -b 127.0.0.1 -d build/docs/site 8000)

bench: setup-bench ## measure speed beside other servers, and kills under load, as JSON lines (SIZE= KILLS= SEED=)
	@$(PYTHON_VENV) -m tests.bench.bench_service all-in
	@$(PYTHON_VENV) -m tests.bench.bench_service alone
	@$(PYTHON_VENV) -m tests.bench.bench_service boards --boards 1000
	@$(PYTHON_VENV) -m tests.bench.bench_service boards --boards 5000 --highest
	@$(PYTHON_VENV) -m tests.bench.bench_service boards --boards 10000 --peers redis mqtt
	@$(PYTHON_VENV) -m tests.bench.bench_service storm
	@$(PYTHON_VENV) -m tests.bench.bench_service lone-board
	@$(PYTHON_VENV) -m tests.bench.bench_service consumer --rounds 1
	@$(PYTHON_VENV) -m tests.bench.kills $(if $(filter command line environment,$(origin KILLS)),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))
	@$(PYTHON_VENV) -m tests.bench.bench_loss
	@$(PYTHON_VENV) -m tests.bench.bench_pipeline --rounds 1 $(if $(SIZE),--size $(SIZE))

build/bench/boards: tests/bench/boards.c c_core/mqqb.c c_core/mqqb.h
	@mkdir -p $(@D)
	@$(CC) -O2 -DNDEBUG -std=gnu99 -Wall -Wextra -Wpedantic -Wconversion -Werror -Ic_core $(filter %.c,$^) -o $@

wheel deb release: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)

wheel: setup ## build ordack as a wheel for this machine in build/wheel/
	@rm -rf $(WHEELS)/source $(WHEELS)/ordack-*.whl
	@mkdir -p $(WHEELS)/source
	@tar --exclude='*.so' --exclude='*.egg-info' --exclude=__pycache__ -c pyproject.toml README.md LICENSE c_core firmware/mqqb host | tar -x -C $(WHEELS)/source
	@umask 022 && CFLAGS="-g0 $$CFLAGS" $(PIP) wheel -q --no-deps --no-build-isolation -w $(WHEELS) $(WHEELS)/source
	@rm -rf $(WHEELS)/source
	@ls $(WHEELS)/ordack-*.whl

deb: $(if $(TRY),setup-test,setup) ## build a Debian package in build/deb/ (TRY=1 installs, upgrades and removes it in a Debian of its own)
	@PYTHON=$(PYTHON_VENV) host/debian/build.sh build/deb
	@$(if $(TRY),$(PYTHON_VENV) -m pytest -q --timeout 3600 tests/host/debian_package.py)

release: setup-release wheel deb firmware ## put wheels, packages, firmware images, checksums and an SBOM into build/release/
	@rm -rf $(RELEASE) build/sbom
	@mkdir -p $(RELEASE)/wheels
	@$(PIP) wheel -q -c tests/constraints.txt -w $(RELEASE)/wheels "$$(echo build/wheel/ordack-$(VERSION)-*.whl)[boards]"
	@cp build/deb/ordack_$(VERSION)_*.deb $(RELEASE)
	@tar --sort=name --owner=0 --group=0 --numeric-owner --mode=a+rX,go-w --mtime=@$$SOURCE_DATE_EPOCH --exclude=made-from -C build/mip -c . | \
		gzip -9n >$(RELEASE)/ordack-$(VERSION)-mip.tar.gz
	@cp build/rp2/firmware.uf2 $(RELEASE)/ordack-$(VERSION)-pico.uf2
	@cp build/rp2/firmware.elf $(RELEASE)/ordack-$(VERSION)-pico.elf
	@cp build/firmware/mps2-an385/firmware.elf $(RELEASE)/ordack-$(VERSION)-mps2-an385.elf
	@cp build/firmware/unix/micropython $(RELEASE)/ordack-$(VERSION)-micropython-linux-$$(uname -m).elf
	@$(PYTHON_VENV) -m venv --without-pip build/sbom
	@$(PIP) --python build/sbom/bin/python install -q --no-index --find-links $(RELEASE)/wheels 'ordack[boards]'
	@.venv/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o $(RELEASE)/ordack-$(VERSION).cdx.json build/sbom/bin/python
	@$(PYTHON_VENV) firmware/ports/sbom.py $(RELEASE)/ordack-$(VERSION).cdx.json build/micropython/*.dsc build/rp2/sources/*.dsc build/rp2/sources/*.deb
	@cd $(RELEASE) && find * -type f | LC_ALL=C sort | xargs sha256sum >SHA256SUMS && cat SHA256SUMS
	@echo "not in it: Pico W, ESP32 and STM32 images, which need files that Debian has not: firmware/docs/how-to/firmware.md"

firmware: setup-firmware ## build MicroPython with ordack for every emulated board and the Pico, and the mip package
	@firmware/ports/rp2/build.sh
	@arm-none-eabi-size $(wildcard build/firmware/*/firmware.elf)
	@ls -gGh --time-style=+ $(addprefix build/firmware/, unix/micropython) build/rp2/firmware.uf2 build/natmod/*/_mqqb.mpy build/mip/package.json
	@echo "no _mqqb.mpy for Xtensa (ESP32), which needs Espressif's compiler: firmware/docs/how-to/firmware.md"

clean: ## remove what the jobs made, except .venv
	@rm -rf build host/*.so host/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@$(C_CORE) clean
	@$(NATIVE) clean
