#!/usr/bin/env bash
# Compiles libsouk_nccl.so next to the programs: torch's NCCL group, for `collective.backend = "nccl"` on machines with GPUs.
# Compiling needs no GPU and no CUDA, only headers, which are downloaded once (200 MB). Does nothing, with a message, on systems
# other than Linux on x86_64. Exit code 3: the headers could not be downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/places.sh
. scripts/places.sh

main() {
    if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
        say "skipping NCCL: it is compiled only on Linux with x86_64"
        return
    fi
    local library torch=${LIBTORCH:-$OWN_TORCH}/include source=native/csrc
    library=$(programs)/libsouk_nccl.so
    [ ! "$library" -nt $source/nccl.cpp ] || [ ! "$library" -nt $source/souk_nccl.h ] || return 0
    scripts/setup.sh cuda-headers || exit 3
    mkdir -p "$(dirname "$library")"
    say "compiling $library"
    # cuda_fwd declares what the headers use from cuBLAS and similar libraries
    "${CXX:-c++}" -std=c++17 -O2 -fPIC -shared -w -DUSE_DISTRIBUTED -DUSE_C10D_NCCL -I $source/cuda_fwd -I "$torch" \
        -I "$torch/torch/csrc/api/include" -I "$CUDA_HEADERS/nvidia/cu13/include" \
        -I "$CUDA_HEADERS/nvidia/cu13/include/cccl" -I "$CUDA_HEADERS/nvidia/nccl/include" $source/nccl.cpp -o "$library.part"
    mv "$library.part" "$library"
}

main
