#!/usr/bin/env bash
# Packs the programs and tests of a CUDA build, with the libraries that they need, for a machine with a GPU that has
# neither this project's dependencies nor a compiler (docs/gpu.md).
#
#   tools/bundle.sh BUILD OUTPUT.tar.xz
#
# BUILD is a folder in which CMake has built everything with CUDA. The bundle is one folder, to be unpacked anywhere:
#   bin/     annulus-train, annulus-checkpoint, the benches    lib/       shared libraries
#   tests/   tests of kernels, CUDA training and NCCL          REVISION   of the sources
#   tools/   gpu_check                                         peers/     PyTorch's side of the benches
# CUDA's own libraries and the C and C++ runtimes are left to the machine, which must be as new as this one.
set -euo pipefail

if [[ $# != 2 || ! -d $1 ]]; then
  echo "usage: tools/bundle.sh BUILD OUTPUT.tar.xz" >&2
  exit 2
fi
build=$(realpath "$1")
output=$(realpath "$2")
root=$(realpath "$(dirname "$0")/..")
if [[ ! -x $build/tools/annulus-train ]]; then
  echo "bundle.sh: $build has no tools/annulus-train; build everything there first" >&2
  exit 1
fi
for program in patchelf strip xz; do
  if ! command -v "$program" >/dev/null; then
    echo "bundle.sh needs $program; on Debian: apt-get install patchelf binutils xz-utils" >&2
    exit 1
  fi
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bundle=$scratch/annulus-gpu
mkdir -p "$bundle"/{bin,lib,tests,tools,peers}

copy() { # FOLDER PROGRAM...: those that this build has
  local folder=$1 program
  shift
  for program in "$@"; do
    if [[ -f $program && -x $program ]]; then cp "$program" "$bundle/$folder/"; fi
  done
}
copy bin "$build"/tools/annulus-{train,checkpoint} "$build"/bench/bench_{kernels,train_step,all_reduce}
copy tests "$build"/tests/kernels_*_test "$build"/tests/nn_cuda_*_test "$build"/tests/nccl_one_gpu_test
cp "$root"/tools/gpu_check.{sh,py} "$bundle/tools/"
cp "$root"/bench/peers/torch_{ddp,gpu}.py "$bundle/peers/"
git -C "$root" describe --always --dirty >"$bundle/REVISION" 2>/dev/null || echo unknown >"$bundle/REVISION"

# The loader, the C and C++ runtimes, and what comes with CUDA and its driver.
system='/(ld-linux|libc\.|libm\.|libpthread\.|libdl\.|librt\.|libstdc|libgcc_s|libcud|libcublas|libnvidia|libnccl)'
while read -r library; do
  cp -L "$library" "$bundle/lib/"
done < <(for program in "$bundle"/{bin,tests}/*; do ldd "$program"; done |
  awk '$3 ~ /^\// { print $3 }' | sort -u | grep -Ev "$system")

chmod u+w "$bundle"/{bin,lib,tests}/*
strip "$bundle"/{bin,tests}/*
cuda=/usr/local/cuda/lib64:/usr/local/cuda/lib
# shellcheck disable=SC2016 # $ORIGIN is the loader's
patchelf --set-rpath '$ORIGIN/../lib:'$cuda "$bundle"/{bin,tests}/*
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN' "$bundle"/lib/*

tar -C "$scratch" -cJf "$output" annulus-gpu
echo "$output: $(du -h "$output" | cut -f1), unpacks to annulus-gpu/; there: tools/gpu_check.sh --bundle ."
