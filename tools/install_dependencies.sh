#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Annulus needs; the one place that knows their names.
#
#   tools/install_dependencies.sh [--no-install] build|test
#
#   build         what it takes to build and run the programs
#   test          that, and what the tests and benches need
#   --no-install  only print what is missing; fails if anything is
set -euo pipefail

install=yes
purpose=
for argument in "$@"; do
  case $argument in
    --no-install) install=no ;;
    build | test) purpose=$argument ;;
    *) purpose= && break ;;
  esac
done
if [[ -z $purpose ]]; then
  echo "usage: tools/install_dependencies.sh [--no-install] build|test" >&2
  exit 2
fi

# Programs count as installed wherever they come from; libraries are looked for as packages.
programs=(g++:g++ cmake:cmake ninja:ninja-build)
# ocl-icd-opencl-dev is only recommended by libdnnl-dev, but its CMake package insists on it.
packages=(libfmt-dev libdnnl-dev ocl-icd-opencl-dev libhdf5-dev zlib1g-dev libcli11-dev nlohmann-json3-dev)
if [[ $purpose == test ]]; then
  programs+=(git:git python3:python3 readelf:binutils)
  packages+=(libgtest-dev libboost-context-dev python3-h5py)
fi
# Real data is optional: quickstart.sh can download it, and tests that need it say that they were skipped.
optional=(dataset-fashion-mnist)

if ! command -v dpkg-query >/dev/null; then
  # CMake will name what is really missing.
  echo "Neither Debian nor Ubuntu: install by hand what is missing of ${programs[*]##*:} ${packages[*]}" >&2
  exit 0
fi

installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing=()
for entry in "${programs[@]}"; do
  command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
done
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
missing_optional=()
for package in "${optional[@]}"; do
  installed "$package" || missing_optional+=("$package")
done

if [[ $install == no ]]; then
  [[ ${#missing[@]} == 0 ]] && exit 0
  echo "Missing packages; install them with" >&2
  echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi

as_root=()
if [[ $(id -u) != 0 ]]; then
  [[ ${#missing[@]} == 0 ]] && exit 0 # Nobody is asked for a password for something optional.
  if ! command -v sudo >/dev/null; then
    echo "Missing packages, and neither root nor sudo to install them: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
[[ ${#missing[@]} == 0 && ${#missing_optional[@]} == 0 ]] && exit 0

apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@" </dev/null; }

apt update >/dev/null || echo "apt-get update failed; going on with the package lists at hand" >&2
if [[ ${#missing[@]} != 0 ]]; then
  echo "Installing with apt-get: ${missing[*]}"
  apt install -y --no-install-recommends "${missing[@]}"
fi
for package in "${missing_optional[@]}"; do
  echo "Installing with apt-get: $package"
  apt install -y --no-install-recommends "$package" ||
    apt install -y --no-install-recommends curl ca-certificates || # to download it instead
    echo "$package is not to be had; going on without" >&2
done
