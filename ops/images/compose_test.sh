#!/bin/sh
# Builds the images, starts docker-compose.yml, asks for an answer, and takes it all down again.
set -eu
cd "$(dirname "$0")/../.."

if ! { docker info && docker compose version; } >/dev/null 2>&1; then
    echo "compose-test: no container engine with compose answers here, so the images were not tried." >&2
    echo "The file itself is tested without one: .venv/bin/python -m pytest tests/e2e/test_compose.py" >&2
    exit 1
fi

port="${QUIRE_PORT:-8000}"
compose() { docker compose --project-name quire-test "$@"; }
trap 'status=$?; [ $status = 0 ] || compose logs --tail 30; compose down --volumes; exit $status' EXIT

echo "== build and start"
compose up --build --detach --wait
echo "== ask"
curl --fail --silent --retry 60 --retry-delay 1 --retry-all-errors "http://127.0.0.1:$port/health/ready" >/dev/null
curl --fail --silent --show-error "http://127.0.0.1:$port/v1/completions" \
    --header 'Content-Type: application/json' \
    --data "{\"model\": \"${QUIRE_MODEL_NAME:-quire-tiny}\", \"prompt\": \"Once upon a time\", \"max_tokens\": 20}"
echo
echo "== compose-test: it answers"
