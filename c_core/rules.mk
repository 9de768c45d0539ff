# Jobs of c_core and host/native: tests, measurements and checks of their C. The including Makefile sets
#   MODULES   its own modules, PROGRAMS its test programs, FUZZED the sources of its fuzz target
#   CORE      the folder of mqqb.c, SUPPORT the folder of check.h, TESTS the folder of the tests
#   ALSO      further modules of the core to link with
#   SYSTEM    modules that are system calls: tests of the host run them, not those of C
#   ALLOCATING  modules that may use forbidden words, because they own memory
# All output goes below BUILD.

SEED ?=
RUNS ?= 200000
GCC ?= gcc
CLANG ?= $(shell command -v clang)
ROOT := $(CORE)/..
GCOVR ?= $(firstword $(wildcard $(ROOT)/.venv/bin/gcovr) gcovr)
PYTHON ?= python3

WARN := -std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wcast-align -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
TEST_WARN := -std=c99 -Wall -Wextra -Wpedantic -Wshadow -Werror
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
INCLUDE += -I. -I$(CORE) -I$(SUPPORT)
HOOK := -include $(SUPPORT)/assert_hook.h
LINTED := $(MODULES) $(SYSTEM)
LINKED := $(sort mqqb $(ALSO) $(MODULES))
FILES := $(wildcard *.[ch] $(CORE)/*.[ch] $(TESTS)/*.h $(SUPPORT)/*.h) Makefile $(CORE)/rules.mk
JOBS ?= $(shell nproc)
SPACE := $(subst ,, )

vpath %.c . $(CORE) $(TESTS) $(SUPPORT)

.DEFAULT_GOAL := help
.PHONY: help test coverage sanitize big-endian m32 lint fuzz mutants clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ' *## ' '/^[a-z0-9-]+:.* ## / { sub(/:.*/, "", $$1); printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# $(call programs,folder,compiler and flags): the test programs, with asserts that the tests can catch. The tests are not
# optimised: it takes longer than it saves.
define programs
$(LINKED:%=$(BUILD)/$(1)/%.o): $(BUILD)/$(1)/%.o: %.c $(FILES)
	@mkdir -p $$(@D)
	@$(2) $(TEST_WARN) $(INCLUDE) $(HOOK) -c $$< -o $$@
$(PROGRAMS:%=$(BUILD)/$(1)/%.o) $(BUILD)/$(1)/assert_hook.o: $(BUILD)/$(1)/%.o: %.c $(FILES)
	@mkdir -p $$(@D)
	@$(2) -O0 $(TEST_WARN) $(INCLUDE) $(HOOK) -c $$< -o $$@
$(PROGRAMS:%=$(BUILD)/$(1)/%): %: %.o $(LINKED:%=$(BUILD)/$(1)/%.o) $(BUILD)/$(1)/assert_hook.o
	@$(2) $$^ -o $$@
endef

$(eval $(call programs,gcc,$(GCC) -O2))
$(eval $(call programs,sanitize,$(or $(CLANG),$(GCC)) -O0 -g $(SANITIZE)))
$(eval $(call programs,big-endian,powerpc-linux-gnu-gcc -O0 -static))
$(eval $(call programs,m32,$(GCC) -m32 -O2))

test: $(PROGRAMS:%=$(BUILD)/gcc/%) ## behaviour by the rules, asserts on; what clang makes of it: sanitize
	@for program in $^; do $$program $(SEED) || exit 1; done

sanitize: $(PROGRAMS:%=$(BUILD)/sanitize/%) $(BUILD)/sanitize/fuzz ## the tests and the fuzz target as a test, under ASan and UBSan
	@for program in $^; do $$program $(SEED) || exit 1; done

$(BUILD)/sanitize/fuzz: $(TESTS)/fuzz.c $(FUZZED) $(FILES)
	@mkdir -p $(@D)
	@$(or $(CLANG),$(GCC)) -O0 -g $(SANITIZE) $(TEST_WARN) $(INCLUDE) $< $(FUZZED) -o $@

big-endian: $(PROGRAMS:%=$(BUILD)/big-endian/%) ## the tests on PowerPC under qemu
	@for program in $^; do qemu-ppc $$program $(SEED) || exit 1; done

m32: ## the tests as 32-bit programs, where the compiler can make them
	@mkdir -p $(BUILD)/m32
	@if echo 'int main(void) { return 0; }' | $(GCC) -m32 -x c - -o $(BUILD)/m32/probe 2>/dev/null; then \
		$(MAKE) --no-print-directory $(PROGRAMS:%=$(BUILD)/m32/%) && \
		for program in $(PROGRAMS:%=$(BUILD)/m32/%); do $$program $(SEED) || exit 1; done; \
	else echo "m32: skipped, $(GCC) has no 32-bit library here"; fi

# Asserts are compiled out: a test cannot return from a failed one. The programs add up their coverage.
$(LINKED:%=$(BUILD)/coverage/%.o): $(BUILD)/coverage/%.o: %.c $(FILES)
	@mkdir -p $(@D)
	@$(GCC) -O0 -g --coverage -DNDEBUG -std=c99 $(INCLUDE:-I%=-I$(CURDIR)/%) -c $(CURDIR)/$< -o $@

$(PROGRAMS:%=$(BUILD)/coverage/%.o): $(BUILD)/coverage/%.o: %.c $(FILES)
	@mkdir -p $(@D)
	@$(GCC) -O0 -DNDEBUG $(TEST_WARN) $(INCLUDE) -c $< -o $@

$(PROGRAMS:%=$(BUILD)/coverage/%): %: %.o $(LINKED:%=$(BUILD)/coverage/%.o)
	@$(GCC) --coverage $^ -o $@

# Modules that own memory are left out: nothing makes their allocations fail.
coverage: $(PROGRAMS:%=$(BUILD)/coverage/%) ## line and branch coverage of the modules that own no memory, 100 % or failure
	@rm -f $(BUILD)/coverage/*.gcda
	@for program in $^; do $$program $(SEED) || exit 1; done
	@$(GCOVR) --root $(ROOT) --filter '$(CURDIR)/(?!$(subst $(SPACE),|,none $(ALLOCATING))[.])mqqb' --txt-metric branch --print-summary --fail-under-line 100 \
		--fail-under-branch 100 $(BUILD)/coverage > $(BUILD)/coverage/report.txt \
		|| { cat $(BUILD)/coverage/report.txt; exit 1; }
	@tail -4 $(BUILD)/coverage/report.txt

fuzz: ## libFuzzer on what reads foreign bytes (SEED= RUNS=; needs clang)
	@mkdir -p $(BUILD)/fuzz/corpus
	@$(CLANG) -O1 -g -DFUZZER -fsanitize=fuzzer,address,undefined $(TEST_WARN) $(INCLUDE) $(TESTS)/fuzz.c $(FUZZED) \
		-o $(BUILD)/fuzz/fuzz
	@$(BUILD)/fuzz/fuzz -seed=$(or $(SEED),0) -runs=$(RUNS) -max_len=2048 -print_final_stats=1 \
		-artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/corpus 2>&1 | grep -E 'INFO: Seed|ERROR|SUMMARY|artifact|Done|stat::number|c:[0-9]+:' ; \
		exit $${PIPESTATUS[0]}

fuzz mutants: SHELL := /bin/bash

# Words forbidden in code for small devices.
POISON := \b(malloc|calloc|realloc|free|alloca|float|double|printf|sprintf|rand|static_assert|goto|union)\b|\btime *\(|__attribute__|\#pragma

TIDY := -*,clang-analyzer-*,bugprone-*,cert-*,portability-*,performance-*,misc-*,readability-braces-around-statements,readability-misleading-indentation,-bugprone-easily-swappable-parameters,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling,-misc-no-recursion

# Limit of analysed states of a function: the default, nine times as high, takes 30 s longer and finds no more.
NODES := -Xclang -analyzer-config -Xclang max-nodes=25000

# Stamp files of checked sources.
$(LINTED:%=$(BUILD)/lint/%.warned): $(BUILD)/lint/%.warned: %.c $(FILES)
	@mkdir -p $(@D)
	@for flags in "" "-DNDEBUG" ; do \
		$(GCC) $(WARN) $(INCLUDE) -O2 $$flags -c $< -o $@.o || exit 1; \
		$(if $(CLANG),$(CLANG) $(WARN) $(INCLUDE) -fsyntax-only $$flags $< || exit 1;) done
	@touch $@

$(LINTED:%=$(BUILD)/lint/%.tidy): $(BUILD)/lint/%.tidy: %.c $(FILES)
	@mkdir -p $(@D)
	@if command -v clang-tidy >/dev/null; then \
		clang-tidy --quiet --warnings-as-errors='*' --checks='$(TIDY)' $< -- -std=c99 $(INCLUDE) $(NODES) 2>/dev/null && touch $@; \
		else echo "clang-tidy: skipped, it is not installed"; fi

lint: $(LINTED:%=$(BUILD)/lint/%.warned) $(LINTED:%=$(BUILD)/lint/%.tidy) ## warnings of both compilers, clang-tidy, cppcheck, forbidden words
	@for module in $(LINTED); do \
		echo "#include \"$$module.h\"" | $(GCC) -x c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(INCLUDE) - || exit 1; done
	@! for file in $(patsubst %,%.h,$(filter-out $(ALLOCATING),$(LINTED))) $(patsubst %,%.c,$(filter-out $(ALLOCATING),$(LINTED))); do \
		$(GCC) -fpreprocessed -dD -E -P $$file 2>/dev/null | grep -nE '$(POISON)' | sed "s/^/$$file: forbidden: /"; done | grep .
	@if command -v cppcheck >/dev/null; then cppcheck --quiet --std=c99 --enable=warning,style,performance,portability --inline-suppr \
		$(INCLUDE) --suppress=missingIncludeSystem --suppress=unusedFunction --error-exitcode=1 $(LINTED:%=%.c); \
		else echo "cppcheck: skipped, it is not installed"; fi
	@echo "lint: ok"

mutants: ## break the modules in the ways of mutants.txt: the tests must fail each time
	@$(PYTHON) $(SUPPORT)/mutants.py $(TESTS)/mutants.txt $(BUILD)/mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

clean:
	@rm -rf $(BUILD)
