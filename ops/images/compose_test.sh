#!/bin/sh
# Builds the images, starts docker-compose.yml, tries what it promises (checks.py, 17 minutes), and takes it all
# down again. Where no registry of images is reached, Debian's packages take the place of others' images
# (stand_ins/), and of Jaeger a program that takes spans.
set -eu
cd "$(dirname "$0")/../.."

if ! { docker info && docker compose version; } >/dev/null 2>&1; then
    echo "compose-test: no container engine with compose answers here, so the images were not tried." >&2
    echo "The file itself is tested without one: .venv/bin/python -m pytest tests/e2e/test_compose.py" >&2
    exit 1
fi

COMPOSE_PROJECT_NAME=quire-test
COMPOSE_FILE=docker-compose.yml:ops/images/patience.yml
QUIRE_RECORDINGS=/recordings
folder=$(mktemp -d)
SECRETS="$folder/secrets"
servers=
export COMPOSE_PROJECT_NAME COMPOSE_FILE QUIRE_RECORDINGS SECRETS
trap 'status=$?; [ $status = 0 ] || docker compose logs --tail 30
    docker compose --profile "*" down --volumes --timeout 5; [ -z "$servers" ] || kill $servers; rm -rf "$folder"
    exit $status' EXIT

# Podman, and Docker before 25.
case $(docker version --format '{{.Server.APIVersion}}') in
    1.[0-9] | 1.[0-3][0-9] | 1.4[0-3]) COMPOSE_FILE=$COMPOSE_FILE:ops/images/older_engines.yml ;;
esac

python=$(sed -n 's/^ARG PYTHON_IMAGE=//p' ops/images/Dockerfile)
if ! { docker image inspect "$python" || timeout 120 docker pull "$python"; } >/dev/null 2>&1; then
    echo "== images of Debian's packages, because there is no $python"
    sh ops/images/stand_ins/make.sh
    COMPOSE_FILE=$COMPOSE_FILE:ops/images/stand_ins/compose.yml
fi

# Where containers reach this machine. The ports are always the same: with others the engine would build all again.
# Docker 20.10 does not tell the gateway of a network that it has just made, which is the network's first address.
address=$(docker network inspect bridge --format '{{(index .IPAM.Config 0).Gateway}}')
[ -n "$address" ] || address=$(docker network inspect bridge --format '{{(index .IPAM.Config 0).Subnet}}' |
    python3 -c 'import ipaddress; print(ipaddress.ip_network(input())[1])')

# A hub with one model.
mkdir -p "$folder/hub/forest" && cp -r ops/tiny_model/model "$folder/hub/forest/fox"
python3 -m tests.support.hub "$folder/hub" "$address" 8766 &
servers="$servers $!"
export HF_ENDPOINT="http://$address:8766"

# A folder in which pip finds torch's CPU build is an index of packages for the time of the build.
wheels=$(python3 -m pip config get global.find-links 2>/dev/null || true)
if [ -z "${TORCH_INDEX:-}" ] && ls "$wheels"/torch-*+cpu-*.whl >/dev/null 2>&1; then
    mkdir "$folder/index" && ln -s "$wheels" "$folder/index/torch"
    python3 -m http.server 8765 --bind "$address" --directory "$folder/index" >/dev/null 2>&1 &
    servers="$servers $!"
    export TORCH_INDEX="http://$address:8765"
fi

echo "== passwords"
python3 -m ops.launcher.acl "$SECRETS"
echo "== the file, with all profiles"
docker compose --profile "*" config --quiet
echo "== build and start"
docker compose --profile operator build
docker compose up --detach --wait
docker compose up --detach --no-deps prometheus
python3 -m ops.images.checks
echo "== compose-test: it keeps what it promises"
