#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to a trained model: installs what is missing, builds, gets Fashion-MNIST, trains
# a CNN on every GPU or core, and goes on from its checkpoint with another number of ranks.
#
#   tools/quickstart.sh [--epochs N] [--no-install]
#
#   --epochs N    epochs before the resume; one more comes after it (default 2)
#   --no-install  print missing packages instead of installing them
set -euo pipefail
cd "$(dirname "$0")/.."
trap 'echo "quickstart.sh stopped at line $LINENO" >&2' ERR

epochs=2
no_install=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --epochs) epochs=${2:?--epochs needs a number} && shift 2 ;;
    --no-install) no_install=(--no-install) && shift ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
[[ $epochs =~ ^[1-9][0-9]*$ ]] || { echo "--epochs needs a number above 0, not $epochs" >&2 && exit 2; }

step() { printf '\n== %s\n' "$*"; }

step "Packages"
tools/install_dependencies.sh "${no_install[@]}" build
echo "all there"

step "Build (build/release)"
cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DANNULUS_BUILD_TESTS=OFF \
  -DANNULUS_BUILD_BENCH=OFF | sed -n '/Annulus/,/tests/p'
cmake --build build/release --target annulus-train annulus-checkpoint
PATH=$PWD/build/release/tools:$PATH

step "Data"
tools/get_fashion_mnist.sh "${no_install[@]}"

# One rank per GPU; without GPUs one per core, as a power of two, so that the batch can be cut into micro-batches
# that fit other world sizes too.
gpus=$(annulus-train --version | tr ' ' '\n' | grep -c '^cuda:[0-9]' || true)
cores=$(nproc)
available=$((gpus > 0 ? gpus : cores))
ranks=1
while ((ranks * 2 <= available)); do ranks=$((ranks * 2)); done
micro_batches=$((ranks > 8 ? ranks : 8))
batch=$((8 * micro_batches))
# The second part of the run: half of the ranks, or, with one GPU, two ranks on the CPU.
other_ranks=$((ranks > 1 ? ranks / 2 : 2))
other_device=auto
if ((ranks == 1 && gpus > 0)); then other_device=cpu; fi

run=build/quickstart
rm -rf "$run"
mkdir -p "$run"
# Values of the last line of a metrics file: what the run ended with.
value() { tail -n 1 "$1" | sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p"; }

step "Training, number of ranks: $ranks"
annulus-train --model cnn --data fashion-mnist --ranks "$ranks" --epochs "$epochs" --batch-size "$batch" \
  --micro-batches "$micro_batches" --lr 0.05 --momentum 0.9 --checkpoint-dir "$run" --metrics "$run/first.jsonl"

step "Resuming, number of ranks: $other_ranks"
annulus-train --ranks "$other_ranks" --device "$other_device" --epochs $((epochs + 1)) --checkpoint-dir "$run" \
  --resume auto --metrics "$run/second.jsonl"

step "Summary"
row() { printf '%-8s %5s  %6s  %10s  %13s  %9s\n' "$@"; }
row "" ranks epochs "mean loss" "test accuracy" samples/s
summary() {
  local accuracy
  accuracy=$(value "$2" test_accuracy | awk '{ printf "%.2f%%", 100 * $1 }')
  row "$1" "$3" "$4" "$(printf '%.4f' "$(value "$2" loss)")" "$accuracy" "$(printf '%.0f' "$(value "$2" samples_per_second)")"
}
summary first "$run/first.jsonl" "$ranks" "$epochs"
summary resumed "$run/second.jsonl" "$other_ranks" 1
cat <<END

The checkpoint is $(value "$run/second.jsonl" checkpoint). What to try next:
  export PATH=\$PWD/build/release/tools:\$PATH
  annulus-checkpoint inspect $(value "$run/second.jsonl" checkpoint)
  annulus-train --checkpoint-dir $run --resume auto --epochs $((epochs + 5)) --ranks $ranks
  annulus-train --help
END
