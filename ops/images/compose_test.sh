#!/bin/sh
# Builds the images, starts docker-compose.yml, tries what it promises (checks.py, 15 minutes), and takes it all
# down again.
set -eu
cd "$(dirname "$0")/../.."

if ! { docker info && docker compose version; } >/dev/null 2>&1; then
    echo "compose-test: no container engine with compose answers here, so the images were not tried." >&2
    echo "The file itself is tested without one: .venv/bin/python -m pytest tests/e2e/test_compose.py" >&2
    exit 1
fi

COMPOSE_PROJECT_NAME=quire-test
SECRETS="$(mktemp -d)/secrets"
export COMPOSE_PROJECT_NAME SECRETS
trap 'status=$?; [ $status = 0 ] || docker compose logs --tail 30
    docker compose --profile operator down --volumes --timeout 5; rm -rf "$(dirname "$SECRETS")"; exit $status' EXIT

echo "== passwords"
python3 -m ops.launcher.acl "$SECRETS"
echo "== build and start"
docker compose --profile operator build
docker compose up --detach --wait
python3 -m ops.images.checks
echo "== compose-test: it keeps what it promises"
