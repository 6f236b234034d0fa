# `make up` starts everything for one machine; `make test` checks everything. PYTHON= chooses the interpreter.
VENV = .venv
VENV_DEV = .venv-dev
PYTHON ?=

.PHONY: up test
.DEFAULT_GOAL := up

up:
	@sh ./install.sh $(VENV) requirements.lock "$(PYTHON)"
	@exec $(VENV)/bin/python manage.py up --stop-with-parent

test:
	@sh ./install.sh $(VENV_DEV) requirements-dev.lock "$(PYTHON)"
	$(VENV_DEV)/bin/python -m ruff check .
	$(VENV_DEV)/bin/python -m ruff format --check .
	$(VENV_DEV)/bin/python -m mypy
	$(VENV_DEV)/bin/python -m pytest -n 2 --dist loadgroup
