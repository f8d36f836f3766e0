#!/bin/sh
# Compiles the CPU kernels with the drawing driver and runs it: address and undefined behaviour, then threads, for this
# machine's instructions and for plainer ones. Arguments: rounds (default 300).
set -eu
here=$(dirname "$0")
source=$here/../../kernels/paged_kernels/cpu_impl/source
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compiler=${CXX:-c++}
"$compiler" --version | head -1
try() {
    name=$1; shift
    "$compiler" -O1 -g -std=c++17 -pthread -fno-math-errno -fno-trapping-math -I "$source" "$@" "$here/driver.cpp" -o "$folder/driver"
    echo "$name: $("$folder/driver" "$rounds")"
}
rounds=${1:-300}
try "address, undefined, -march=native" -march=native -fsanitize=address,undefined -fno-sanitize-recover=all
[ "$(uname -m)" != x86_64 ] || try "address, undefined, AVX2" -mavx2 -mfma -fsanitize=address,undefined -fno-sanitize-recover=all
try "address, undefined, plain" -fsanitize=address,undefined -fno-sanitize-recover=all
try "threads, -march=native" -march=native -fsanitize=thread
