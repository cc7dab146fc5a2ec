#!/usr/bin/env bash
# Compiles libsouk_nccl.so beside the programs: torch's NCCL group, for `collective.backend = "nccl"` on machines with GPUs.
# Needs no GPU and no CUDA here, only headers, which are fetched once (200 MB). Where libtorch is not Linux's on x86_64
# there is nothing to compile, and it says so. Ends with 3 where the headers cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

main() {
    if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
        say "NCCL's group is compiled on Linux with x86_64 alone"
        return
    fi
    local library torch=${LIBTORCH:-$OWN_TORCH}/include source=native/csrc
    library=$(programs)/libsouk_nccl.so
    [ ! "$library" -nt $source/nccl.cpp ] || [ ! "$library" -nt $source/souk_nccl.h ] || return 0
    scripts/setup.sh cuda-headers || exit 3
    mkdir -p "$(dirname "$library")"
    say "compiling $library"
    # what the headers name of cuBLAS and its kin, cuda_fwd declares
    "${CXX:-c++}" -std=c++17 -O2 -fPIC -shared -w -DUSE_DISTRIBUTED -DUSE_C10D_NCCL -I $source/cuda_fwd -I "$torch" \
        -I "$torch/torch/csrc/api/include" -I "$CUDA_HEADERS/nvidia/cu13/include" \
        -I "$CUDA_HEADERS/nvidia/cu13/include/cccl" -I "$CUDA_HEADERS/nvidia/nccl/include" $source/nccl.cpp -o "$library.part"
    mv "$library.part" "$library"
}

main
