#!/usr/bin/env bash
# Makes sure that `--data fashion-mnist` finds its four files: those of the Debian package
# dataset-fashion-mnist, or else the official ones, downloaded and checked.
#
#   tools/get_fashion_mnist.sh [--no-install]
set -euo pipefail

# SHA-256 of the files' contents, decompressed: packages compress them again.
declare -A sums=(
  [train-images-idx3-ubyte]=c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
  [train-labels-idx1-ubyte]=bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
  [t10k-images-idx3-ubyte]=5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
  [t10k-labels-idx1-ubyte]=0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
)
sources=(
  https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion
  http://fashion-mnist.s3-website.eu-central-1.amazonaws.com
)

complete() {
  local name
  for name in "${!sums[@]}"; do
    [[ -f $1/$name || -f $1/$name.gz ]] || return 1
  done
}

downloads=$HOME/.cache/annulus/fashion-mnist
for folder in ${ANNULUS_DATA:+"$ANNULUS_DATA/fashion-mnist"} /usr/share/datasets/fashion-mnist "$downloads"; do
  if complete "$folder"; then
    echo "Fashion-MNIST is in $folder"
    exit 0
  fi
done
if [[ ${1:-} == --no-install ]]; then
  echo "Fashion-MNIST is missing: install dataset-fashion-mnist, or let $0 download it to $downloads" >&2
  exit 1
fi

mkdir -p "$downloads"
for name in "${!sums[@]}"; do
  file=$downloads/$name.gz
  for source in "${sources[@]}"; do
    echo "Downloading $source/$name.gz"
    if curl --fail --silent --show-error --location --max-time 300 --output "$file.part" "$source/$name.gz" &&
      [[ $(gzip -dc "$file.part" | sha256sum) == "${sums[$name]}  -" ]]; then
      mv "$file.part" "$file"
      break
    fi
    echo "no good $name.gz from $source" >&2
    rm -f "$file.part"
  done
  [[ -f $file ]] || { echo "Fashion-MNIST could not be downloaded" >&2 && exit 1; }
done
echo "Fashion-MNIST is in $downloads"
