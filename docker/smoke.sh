#!/usr/bin/env bash
# Builds the image, starts the containers, and checks that a job outlives the container that runs it
# and that data outlive all containers. Prints SKIPPED and why where no engine can start.
#
#   docker/smoke.sh [--keep]     --keep leaves the containers running
#
# A library is also run with an old C library, in the image STOWPLAN_OLD_IMAGE (centos:7, glibc 2.17, whose
# Python has ctypes), where the engine has it or can get it.
# STOWPLAN_BASE names a base image with Python 3.11; without it, and without a registry, one is made of
# Debian's packages (as root, with debootstrap). What is made is kept in STOWPLAN_SMOKE
# (/var/tmp/stowplan-smoke) for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."

place=${STOWPLAN_SMOKE:-/var/tmp/stowplan-smoke}
port=${STOWPLAN_PORT:-18000}
project=stowplan-smoke
base=${STOWPLAN_BASE:-python:3.11-slim}
local_base=stowplan-base:bookworm
keep=no
[ "${1:-}" = --keep ] && keep=yes
mkdir -p "$place"
began=$SECONDS

say() { printf 'smoke %4ds: %s\n' $((SECONDS - began)) "$*"; }
skip() { say "SKIPPED: $*"; exit 0; }
fail() { say "FAILED: $*"; compose logs --tail 60 || true; exit 1; }

daemon=
finish() {
    status=$?
    if [ "$keep" = no ]; then
        compose down --volumes --timeout 5 >/dev/null 2>&1 || true
        [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } >/dev/null 2>&1 || true
    fi
    exit "$status"
}

# --- an engine --------------------------------------------------------------------------------------
command -v docker >/dev/null || skip "there is no docker client; install docker.io"
if ! docker info >/dev/null 2>&1; then
    command -v dockerd >/dev/null || skip "no docker engine answers, and there is no dockerd to start"
    [ "$(id -u)" = 0 ] || skip "no docker engine answers, and only root can start one"
    export DOCKER_HOST=unix://$place/docker.sock
    # No bridge and no filters of the host's: this engine touches nothing outside of its folder.
    dockerd --iptables=false --ip6tables=false --bridge=none --data-root "$place/docker" \
        --exec-root "$place/run" --pidfile "$place/dockerd.pid" --host "$DOCKER_HOST" \
        >"$place/dockerd.log" 2>&1 &
    daemon=$!
    for _ in $(seq 60); do
        docker info >/dev/null 2>&1 && break
        kill -0 "$daemon" 2>/dev/null || skip "dockerd does not start here: $(tail -n 1 "$place/dockerd.log")"
        sleep 0.5
    done
    docker info >/dev/null 2>&1 || { kill "$daemon"; skip "dockerd did not answer within 30 s"; }
fi
say "engine $(docker version --format '{{.Server.Version}}')"

if docker compose version >/dev/null 2>&1; then
    client=(docker compose)
elif command -v docker-compose >/dev/null; then
    client=(docker-compose)
else
    [ -z "$daemon" ] || kill "$daemon"
    skip "there is no compose; install docker-compose"
fi
export STOWPLAN_PORT=$port COMPOSE_PROJECT_NAME=$project DOCKER_BUILDKIT=0 COMPOSE_DOCKER_CLI_BUILD=0
compose() { "${client[@]}" -f docker/compose.yaml "$@"; }
trap finish EXIT

# --- a base image -----------------------------------------------------------------------------------
if ! docker image inspect "$base" >/dev/null 2>&1 && ! timeout 60 docker pull --quiet "$base" >/dev/null 2>&1; then
    say "no registry has $base for us"
    base=$local_base
    if ! docker image inspect "$base" >/dev/null 2>&1; then
        command -v debootstrap >/dev/null || skip "neither is there debootstrap to make a base image"
        [ "$(id -u)" = 0 ] || skip "only root can make a base image with debootstrap"
        root=$place/root
        rm -rf "$root"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" \
            >"$place/debootstrap.log" 2>&1 || skip "debootstrap: $(tail -n 1 "$place/debootstrap.log")"
        # Where packages come from and whom to trust is a matter of the machine that builds.
        for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
            [ ! -r "$file" ] || cp "$file" "$root$file"
        done
        tar -C "$root" -c . | docker import - "$base" >/dev/null
        rm -rf "$root"
        say "base image made of Debian's packages"
    fi
    export STOWPLAN_BUILD_NETWORK=host
fi
export STOWPLAN_BASE=$base

# --- build ------------------------------------------------------------------------------------------
if ! docker build --network "${STOWPLAN_BUILD_NETWORK:-default}" --build-arg "BASE=$base" \
    --file docker/Dockerfile --target run --tag stowplan . >"$place/build.log" 2>&1; then
    if grep -qE 'Could not find a version|No matching distribution|Connection|Temporary failure|CERTIFICATE' \
        "$place/build.log"; then
        skip "pip inside the build reaches no package registry: $(grep -E 'ERROR|WARNING' "$place/build.log" | tail -n 1)"
    fi
    tail -n 30 "$place/build.log"
    fail "the image was not built, see $place/build.log"
fi
say "image built"

# --- start ------------------------------------------------------------------------------------------
compose down --volumes --timeout 5 >/dev/null 2>&1 || true
key=$(compose run --rm -T api stowplan keys create --name smoke --scope admin 2>/dev/null | tail -n 1 | tr -d '\r')
[[ $key == sp_* ]] || fail "no key was made: $key"
up() { compose up --detach --no-build >"$place/up.log" 2>&1 || { cat "$place/up.log"; fail "up"; }; }
# The API is asked from inside of its container: an engine without a bridge publishes no port.
inside() { compose exec -T -e STOWPLAN_KEY="$key" api "$@"; }
job_field() { inside stowplan jobs show "$job" --json | python3 -c "import json,sys; print(json.load(sys.stdin)[0]['$1'] or '')"; }
worker_is_ready() {
    inside python -c "import json, urllib.request as r; print(json.load(r.urlopen('http://127.0.0.1:8000/readyz'))['workers'])" 2>/dev/null
}
up
for _ in $(seq 90); do [ "$(worker_is_ready)" = 1 ] && break; sleep 1; done
[ "$(worker_is_ready)" = 1 ] || fail "no worker became ready"
say "api and worker are ready"

# --- a real model, and a death ----------------------------------------------------------------------
job=$(inside python -c "
import pathlib, os
from app import samples
from app.client import Client
path = pathlib.Path('/tmp/model.onnx')
path.write_bytes(samples.build('squeezenet'))
with Client(key=os.environ['STOWPLAN_KEY']) as client:
    model = client.upload(path)
    print(client.submit(model.id, options={'benchmark_seconds': 0.2, 'autotune': False}).id)
" | tail -n 1 | tr -d '\r')
for _ in $(seq 300); do
    phase=$(job_field phase)
    case "$phase" in "" | starting) sleep 0.2 ;; *) break ;; esac
done
[ "$(job_field state)" = running ] || fail "the job is $(job_field state) before the worker was killed"
worker=$(compose ps -q worker)
before=$(docker inspect --format '{{.State.Pid}}' "$worker")
# From outside, as the kernel would for want of memory: the engine starts it again.
kill -9 "$before"
say "worker container killed in phase '$phase' of job $job"
inside stowplan jobs wait "$job" --timeout 300 >/dev/null || fail "the job is $(job_field state): $(job_field detail)"
after=$(docker inspect --format '{{.State.Pid}}' "$worker")
[ "$before" != "$after" ] || fail "the worker container was not started again"
starts=$(inside python -c "
import sqlite3
print(sqlite3.connect('/data/stowplan.db').execute('select attempt from jobs where id = ?', ('$job',)).fetchone()[0])" | tr -d '\r')
[ "$starts" -ge 2 ] || fail "the job was started $starts times: the kill did not hit it"
say "the job succeeded, at start $starts"

# --- a library, where the C library is old -------------------------------------------------------------
old=${STOWPLAN_OLD_IMAGE:-centos:7}
if docker image inspect "$old" >/dev/null 2>&1 || timeout 60 docker pull --quiet "$old" >/dev/null 2>&1; then
    inside sh -c 'cd /tmp && stowplan optimize model.onnx --export c --quick --out exported >/dev/null &&
        tar -xzf exported/*.tar.gz -C exported --strip-components 1' || fail "no library was exported"
    rm -rf "$place/exported"
    mkdir -p "$place/exported"
    inside cat /tmp/exported/model.so >"$place/exported/model.so"
    # The outputs of two instances, of one thread and of two, are the same and not all zero.
    program='
import ctypes, platform, sys
library = ctypes.CDLL("/exported/model.so")
class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("rank", ctypes.c_int),
                ("dtype", ctypes.c_int), ("bytes", ctypes.c_uint64)]
library.stowplan_input.restype = library.stowplan_output.restype = ctypes.POINTER(Tensor)
library.stowplan_input_memory.restype = library.stowplan_output_memory.restype = ctypes.c_void_p
found = []
for threads in (1, 2):
    model = ctypes.c_void_p()
    assert library.stowplan_create(ctypes.byref(model), threads, 0) == 0
    count = library.stowplan_input(0).contents.bytes // 4
    x = (ctypes.c_float * count).from_address(library.stowplan_input_memory(model, 0))
    for i in range(count): x[i] = i % 7 / 7.0
    assert library.stowplan_run(model) == 0
    found.append(ctypes.string_at(library.stowplan_output_memory(model, 0), library.stowplan_output(0).contents.bytes))
    library.stowplan_destroy(model)
assert found[0] == found[1] and any(bytearray(found[0]))
sys.stdout.write(" ".join(platform.libc_ver()))
'
    told=$(docker run --rm --network none --volume "$place/exported:/exported:ro" "$old" python -c "$program") ||
        fail "the library does not run in $old"
    say "a library runs in $old, $told"
else
    say "NOT RUN with an old C library: no image $old here, and no registry has it for us"
fi

# --- down and up ------------------------------------------------------------------------------------
sum() { inside sh -c "cd /tmp && stowplan jobs artifacts $job optimized.onnx --out /tmp/out >/dev/null && sha256sum /tmp/out/optimized.onnx" | cut -d ' ' -f 1; }
first=$(sum)
compose down --timeout 15 >/dev/null 2>&1
up
for _ in $(seq 90); do [ "$(worker_is_ready)" = 1 ] && break; sleep 1; done
[ "$(job_field state)" = succeeded ] || fail "after down and up the job is $(job_field state)"
[ "$(sum)" = "$first" ] || fail "after down and up the artifact is another one"
say "job and artifact outlived down and up"
say PASSED
