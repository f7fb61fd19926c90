#!/bin/sh
# Fuzz the read kernel under AddressSanitizer and UndefinedBehaviorSanitizer.
#   scripts/kernel_asan.sh [SECONDS] [STREAMS] [SEED]       PYTHON, CC: which ones to use
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-20} streams=${2:-2000} seed=${3:-1}
source=rivet_dagster/engine/sources/postgres
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${CC:-cc}" -std=c11 -O1 -g -Wall -Wextra -Werror -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all \
    -I "$source" tests/unit/kernel/fuzz_main.c "$source"/*.c -o "$work/fuzz"
"${PYTHON:-python}" -m tests.unit.kernel.corpus "$work/corpus" "$streams" "$seed"
ASAN_OPTIONS=detect_leaks=${RIVET_FUZZ_LEAKS:-1} "$work/fuzz" "$work/corpus" "$seconds"
