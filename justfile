# Baton's recipes. `./dev <recipe>` runs one with nothing installed but Python; `./dev` lists them.

set positional-arguments

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

# List the recipes
[private]
default:
    @just --list --unsorted

# So that `just demo` works as well as `./dev demo`: it makes .venv when it is missing or out of date.
_house:
    @./dev --version >/dev/null

# Show Baton at work on this machine: real servers, simulated GPUs, no Docker, no root
[group("run")]
demo *args: _house
    baton demo "$@"

# Start everything in containers: NATS, Redis, MongoDB, the services, Prometheus, Grafana
[group("run")]
compose *args:
    @python3 deploy/passwords.py
    docker compose up --build "$@"

# Jobs per second and latency through the whole real stack; `--peers`: beside other schedulers
[group("run")]
bench *args: _house
    #!/bin/sh
    case "${1:-}" in
        --peers) shift; exec python -m benchmarks.peers "$@" ;;
        *) exec python -m benchmarks.throughput "$@" ;;
    esac

# What a placement decision costs, against first-fit in numpy (see also `python -m benchmarks.allocation`)
[group("run")]
bench-placement *args: _house
    python -m benchmarks.placement "$@"

# Five workers on two cores: much of the time is waiting. What one of the many processes compiles, the others read.
#
# What CI runs: style, types, import contracts and schema drift (tests/architecture) and every other test
[group("test")]
[no-exit-message]
test *args: _house
    env -u PYTHONDONTWRITEBYTECODE pytest -n 5 --dist loadfile "$@"

# The whole of Baton under seeded faults in virtual time: 12,000 seeds; `--seed N` replays one. `--real`: with real servers and processes
[group("test")]
[no-exit-message]
chaos *args: _house
    #!/bin/sh
    case " $* " in
        *" --real "*) exec python -m tests.faults.chaos "$@" ;;
        *) exec python -m libs.simulation.dst "$@" ;;
    esac

# Backup and restore as a drill: an instance is destroyed but for its backup, and goes on elsewhere
[group("test")]
[no-exit-message]
drill *args: _house
    pytest -q -s tests/tenants/test_backup.py tests/tenants/test_drill.py "$@"

# The tests that finish in seconds: no faults, no demo
[group("test")]
[no-exit-message]
unit *args: _house
    pytest -m "not faults and not demo" "$@"

# Style, types and import contracts, without running tests
[group("test")]
[no-exit-message]
check: _house
    ruff check
    ruff format --check
    mypy
    lint-imports --no-logo

# Put the code in shape: imports, fixes, layout
[group("change")]
fmt: _house
    ruff check --fix
    ruff format

# Write JSON Schema and AsyncAPI from schemas/catalog.py
[group("change")]
schemas: _house
    python -m schemas.generate

# Pin the newest versions that requirements/*.in allow, with hashes and without any host name
[group("change")]
lock *args: _house
    #!/bin/sh
    set -eu
    if ! cmp -s requirements/lock.txt .venv/uv/installed; then
        python -m venv --clear .venv/uv
        .venv/uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
        cp requirements/lock.txt .venv/uv/installed
    fi
    for name in base build dev audit lock; do
        .venv/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
            --no-annotate --no-header --no-emit-index-url "$@" -o "requirements/$name.txt" "requirements/$name.in"
    done

# What is published: the wheel, what it consists of (an SBOM, CycloneDX), and their hashes, in dist/
[group("change")]
release: _house
    rm -rf dist
    python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
    python deploy/sbom.py "dist/$(basename dist/*.whl .whl).cdx.json"
    cd dist && python -c 'import hashlib, pathlib; [print(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}") for p in sorted(pathlib.Path(".").iterdir())]' >../SHA256SUMS && mv ../SHA256SUMS .
    @ls -l dist

# Known vulnerabilities of what is pinned (asks a public database, so CI does not run it)
[group("test")]
[no-exit-message]
audit *args: _house
    #!/bin/sh
    set -eu
    if ! cmp -s requirements/audit.txt .venv/audit/installed; then
        python -m venv --clear .venv/audit
        .venv/audit/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
        cp requirements/audit.txt .venv/audit/installed
    fi
    for name in base build dev audit lock; do
        .venv/audit/bin/pip-audit --strict --require-hashes --disable-pip --requirement "requirements/$name.txt" "$@"
    done

# Remove caches and demo output; keeps .venv and the state in .baton
[group("change")]
clean:
    rm -rf out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
    find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
