#!/bin/sh
# install.sh VENV LOCK [PYTHON]: a virtual environment with exactly what LOCK names, built aside and renamed when
# whole; nothing happens when it is there already. Everything the machine lacks is named before any download.
set -eu

venv=$1
lock=$2
wanted=${3:-}
new=$venv.new.$$
oldest=11
newest=14 # the last Python 3 that every package of the lock has a wheel for

fail() {
    echo "error: $*" >&2
    exit 1
}

# Prints N for a working Python 3.N; a shim of pyenv's is found on PATH and does not run.
minor_of() {
    "$1" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' 2>/dev/null
}

fits() {
    [ "$(minor_of "$1" || echo 0)" -ge "$oldest" ]
}

has_venv() {
    "$1" -c 'import venv, ensurepip, ssl, ctypes' 2>/dev/null
}

# The newest Python that can make a virtual environment, else the newest at all.
choose() {
    fallback=
    minor=$newest
    while [ "$minor" -ge "$oldest" ]; do
        if fits "python3.$minor"; then
            if has_venv "python3.$minor"; then
                echo "python3.$minor"
                return
            fi
            fallback=${fallback:-python3.$minor}
        fi
        minor=$((minor - 1))
    done
    if [ -z "$fallback" ] && fits python3 && [ "$(minor_of python3)" -le "$newest" ]; then
        fallback=python3
    fi
    echo "$fallback"
}

check_machine() {
    case "$(uname -sm)" in
    "Linux x86_64" | "Linux aarch64") ;;
    *) fail "this runs on Linux (x86_64 or aarch64), not on $(uname -sm)" ;;
    esac
    if [ -n "$wanted" ]; then
        minor_of "$wanted" >/dev/null || fail "PYTHON=$wanted does not run"
        fits "$wanted" || fail "PYTHON=$wanted is older than Python 3.$oldest"
        python=$wanted
    else
        python=$(choose)
        [ -n "$python" ] || fail "no Python from 3.$oldest to 3.$newest on PATH: install one (Debian: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3"
    fi
    has_venv "$python" || fail "$python cannot make virtual environments (its modules venv, ensurepip, ssl and ctypes are needed): install them (Debian: apt install python3-venv, or python3.$(minor_of "$python")-venv)"
    "$python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null ||
        fail "the GNU OpenMP library libgomp.so.1 is missing: install it (Debian: apt install libgomp1)"
}


base_of() {
    "$1" -c 'import os, sys; print(os.path.realpath(sys._base_executable), "3.%d" % sys.version_info[1])' 2>/dev/null
}

lock_sum() {
    cksum <"$lock"
}

# There, runs, made from this lock, and by the Python asked for if one was.
is_current() {
    [ -f "$venv/made-from" ] && base=$(base_of "$venv/bin/python") || return 1
    { [ -z "$wanted" ] || [ "$(base_of "$wanted")" = "$base" ]; } || return 1
    [ "$(cat "$venv/made-from")" = "$(lock_sum) $base" ]
}

# An environment of somebody's own is used as it is when it holds what the lock names, and is never replaced.
check_foreign() {
    "$venv/bin/python" - "$lock" <<'EOF' || fail "$venv was not made by this Makefile and does not hold what $lock names: move it away"
import sys
from importlib.metadata import PackageNotFoundError, version
from pip._vendor.packaging.requirements import Requirement

for line in open(sys.argv[1], encoding="utf-8"):
    if line[0].isalnum():
        pin = Requirement(line.rstrip(" \\\n"))
        try:
            if (pin.marker is None or pin.marker.evaluate()) and version(pin.name) not in pin.specifier:
                sys.exit(1)
        except PackageNotFoundError:
            sys.exit(1)
EOF
}

# pip writes the folder's name into its scripts; this one is called otherwise when it is done.
set_final_name() {
    "$new/bin/python" - "$new" "$venv" <<'EOF'
import pathlib, sys

built, final = (str(pathlib.Path(name).absolute()).encode() for name in sys.argv[1:])
for script in pathlib.Path(sys.argv[1], "bin").iterdir():
    if not script.is_symlink() and built in (text := script.read_bytes()):
        script.write_bytes(text.replace(built, final))
EOF
}

install() {
    trap 'rm -rf "$new"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "Installing the packages of $lock into $venv with $python (once, about 500 MB)" >&2
    "$python" -m venv "$new"
    "$new/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
        --no-deps --only-binary=:all: --require-hashes -r "$lock" ||
        fail "the packages could not be installed; nothing was changed"
    set_final_name
    echo "$(lock_sum) $(base_of "$new/bin/python")" >"$new/made-from"
    if [ -e "$venv" ]; then
        mv "$venv" "$new.old"
    fi
    mv "$new" "$venv"
    rm -rf "$new.old"
}

if is_current; then
    exit 0
fi
if [ -e "$venv" ] && [ ! -f "$venv/made-from" ]; then
    check_foreign
    exit 0
fi
check_machine
install
