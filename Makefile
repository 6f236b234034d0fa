# `make up` starts everything for one machine; `make test` checks everything; `make check URL=http://host:8080` says
# what a llama-server is good for; `make bench` measures what all this costs. PYTHON= chooses the interpreter.
VENV = .venv
VENV_DEV = .venv-dev
PYTHON ?=

.PHONY: up test bench check
.DEFAULT_GOAL := up

up:
	@sh ./install.sh $(VENV) requirements.lock "$(PYTHON)"
	@exec $(VENV)/bin/python manage.py up --stop-with-parent

test:
	@sh ./install.sh $(VENV_DEV) requirements-dev.lock "$(PYTHON)"
	$(VENV_DEV)/bin/python -m ruff check .
	$(VENV_DEV)/bin/python -m ruff format --check .
	$(VENV_DEV)/bin/python -m mypy --num-workers 2
	$(VENV_DEV)/bin/python -m pytest -n 3 --dist loadgroup

# Tells nothing on a busy machine. ARGS=--quick: a minute, to see that it works.
bench:
	@sh ./install.sh $(VENV_DEV) requirements-dev.lock "$(PYTHON)"
	$(VENV_DEV)/bin/python -m tests.benchmarks $(ARGS)

# Needs no site of ours. make itself ends with 2 for every grade below full; check_servers' own code says which.
check:
	@sh ./install.sh $(VENV) requirements.lock "$(PYTHON)"
	@SECRET_KEY=nothing-is-signed-here $(VENV)/bin/python manage.py check_servers $(URL) $(ARGS)
