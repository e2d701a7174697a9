#!/usr/bin/env bash
# Builds everything with warnings as errors and runs the whole test suite.
#
#   tools/test.sh [--no-install] [ctest options, for instance -R kernels]
set -euo pipefail
cd "$(dirname "$0")/.."

no_install=()
if [[ ${1:-} == --no-install ]]; then
  no_install=(--no-install)
  shift
fi
tools/install_dependencies.sh "${no_install[@]}" test

launcher=$(command -v ccache || true)
cmake -S . -B build/test -G Ninja -DCMAKE_BUILD_TYPE=Release -DANNULUS_WARNINGS_AS_ERRORS=ON \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_CUDA_COMPILER_LAUNCHER="$launcher"
cmake --build build/test
exec ctest --test-dir build/test --parallel "$(nproc)" --output-on-failure "$@"
