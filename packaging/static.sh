#!/bin/sh
# Builds a program that needs no library of the system, with its notices, manual pages and completions, in target/static.
# Needs the target x86_64-unknown-linux-musl of rustup, or another one as the first argument.
set -eu
cd "$(dirname "$0")/.."
target=${1:-x86_64-unknown-linux-musl}
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" cargo build --release --locked --bin tokkata --target "$target"
out=target/static
mkdir -p "$out/man" "$out/completions"
cp "target/$target/release/tokkata" "$out/tokkata"
strip "$out/tokkata"
cp crates/cli/THIRD-PARTY-NOTICES LICENSE-MIT LICENSE-APACHE "$out/"
"$out/tokkata" man "$out/man"
for shell in bash zsh fish; do
  "$out/tokkata" completions "$shell" > "$out/completions/tokkata.$shell"
done
ls -l "$out/tokkata"
