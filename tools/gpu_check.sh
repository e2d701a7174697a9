#!/usr/bin/env bash
# Checks and measures everything on a machine with a GPU, in one call of less than ten minutes (docs/gpu.md).
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
