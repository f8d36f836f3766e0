#!/usr/bin/env bash
# Generates the Python code of the schemas with one pinned, old grpcio-tools: code that a newer protobuf
# generates refuses an older run time. Needs a Python with wheels for it (3.8 to 3.12) and its own environment.
set -euo pipefail
cd "$(dirname "$0")"
env_dir=${1:-../.venv-protos}
if [ ! -x "$env_dir/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$env_dir"
  "$env_dir/bin/pip" install -q 'grpcio-tools==1.62.3' 'setuptools<80'
fi
mapfile -t files < <(find octavo -name '*.proto' | sort)
"$env_dir/bin/python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. "${files[@]}"
sha256sum "${files[@]}" > octavo/schema.sha256
