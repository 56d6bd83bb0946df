# make demo      shows Cordwood at work      make lint types layers    what reviewers need not say
# make test      tests in five minutes       make check-kafka          slow: compares with Kafka itself
# make test-all  runs the other tests        make cluster-test         runs it on a small Spark cluster
# make docs      builds the docs as a site   make bench                prints our speed
# make           only sets up .venv
#
# All of them set up first, which takes two or three minutes, once. PYTHON=… chooses the interpreter, ARGS=… goes to the tool:
#   make test ARGS="tests/record -k crc"

# An empty environment (env -i) has neither, and Python, pip and the kernels' cache need both.
export PATH := $(or $(PATH),/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/homebrew/bin)
export HOME := $(or $(HOME),$(shell eval echo "~$$(id -un)"))
export PYTHON

bin := .venv/bin
# A process per core. Each begins with its share of the files, so that two processes rarely make one fixture.
together := -n auto --dist worksteal
# Slow comparisons are left out of `make test`; conftest.py says how many.
slow := (kafka or slow) and not (cluster or large or month or soak)

.PHONY: setup demo test test-all lint types layers lock bench check-kafka cluster-test docs clean

setup: .venv/.stamp

# Only a set-up that came to its end leaves a stamp; without one the next starts from nothing.
.venv/.stamp: requirements.lock pyproject.toml scripts/set-up
	@scripts/set-up

demo: setup
	@$(bin)/cordwood demo $(ARGS)

test: setup
	@$(bin)/python -m pytest $(together) -m "not (more or kafka or slow or cluster)" $(ARGS)

# The tests that `make test` leaves out, without those that need Kafka.
test-all: setup
	@$(bin)/python -m pytest $(together) -m "more and not (kafka or slow or cluster)" $(ARGS)

check-kafka: setup
	@$(bin)/python -m pytest $(together) -m "$(slow)" $(ARGS)

# Starts a master and two workers of Spark on 127.0.0.1, and ends them.
cluster-test: setup
	@$(bin)/python -m pytest -m cluster $(ARGS)

bench: setup
	@$(bin)/cordwood bench $(ARGS)

# Into build/site; opened as files its pages work, but for the search: python -m http.server -d build/site.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --quiet --strict $(ARGS)

lint: setup
	@$(bin)/ruff check $(ARGS)
	@$(bin)/ruff format --check $(ARGS)
	@$(bin)/vulture

types: setup
	@$(bin)/mypy $(ARGS)

layers: setup
	@$(bin)/lint-imports $(ARGS)

# After a change of pyproject.toml's dependencies. Keeps the versions that still fit; ARGS=--upgrade takes newer ones.
lock: setup
	@$(bin)/uv pip compile pyproject.toml -o requirements.lock --quiet --native-tls --universal --generate-hashes \
	    --no-emit-index-url --all-extras --group dev --custom-compile-command "make lock" $(ARGS)

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
