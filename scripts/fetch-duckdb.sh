#!/bin/sh
# Fetches the prebuilt DuckDB library into .cache/duckdb, from the npm packages that DuckDB Labs publishes for Node.
# Does nothing if the right version is there. Needs npm and tar; without them build with `--features bundled`
# (a C++ compiler and about a quarter of an hour).
#
# Usage: scripts/fetch-duckdb.sh [directory]     (default: .cache/duckdb beside this script's parent)
set -eu

version=1.5.6-r.1
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
target=${1:-$root/.cache/duckdb}

fail() {
    echo "fetch-duckdb: $*" >&2
    exit 1
}

case "$(uname -s)" in
    Linux) os=linux library=libduckdb.so ;;
    Darwin) os=darwin library=libduckdb.dylib ;;
    *) fail "no prebuilt DuckDB for $(uname -s); build with --features bundled" ;;
esac
case "$(uname -m)" in
    x86_64 | amd64) cpu=x64 ;;
    aarch64 | arm64) cpu=arm64 ;;
    *) fail "no prebuilt DuckDB for $(uname -m); build with --features bundled" ;;
esac
package="@duckdb/node-bindings-$os-$cpu"
want="$package@$version"

if [ -f "$target/$library" ] && [ "$(cat "$target/VERSION" 2>/dev/null)" = "$want" ]; then
    echo "fetch-duckdb: $want is in $target"
    exit 0
fi
command -v npm >/dev/null 2>&1 || fail "npm is missing: install it, or build with --features bundled"

mkdir -p "$target"
# Beside the target, so that the last step is a rename within one file system.
work=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
(cd "$work" && npm pack --silent "$want" >/dev/null) || fail "npm could not fetch $want"
tar -xzf "$work"/*.tgz -C "$work" || fail "the package $want is not readable"
found=$(sed -n 's/^ *"version": *"\([^"]*\)".*/\1/p' "$work/package/package.json" | head -n 1)
[ "$found" = "$version" ] || fail "expected version $version of $package, got '$found'"
[ -f "$work/package/$library" ] || fail "$want does not hold $library"
mv -f "$work/package/$library" "$target/$library"
cp "$work/package/LICENSE" "$target/LICENSE" 2>/dev/null || true
echo "$want" >"$target/VERSION"
echo "fetch-duckdb: fetched $want into $target"
