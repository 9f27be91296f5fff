//! Makes this crate's tests and examples find the prebuilt libduckdb at run time, and says what to do where it is
//! missing. Crates that build a binary over this one need the same `rustc-link-arg`, since cargo does not pass it on.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=DUCKDB_LIB_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_BUNDLED").is_some() {
        return;
    }
    let Some(dir) = std::env::var_os("DUCKDB_LIB_DIR").map(PathBuf::from) else { return };
    if !["libduckdb.so", "libduckdb.dylib", "libduckdb.a"].iter().any(|name| Path::exists(&dir.join(name))) {
        println!(
            "cargo:warning=no libduckdb in {}: run scripts/fetch-duckdb.sh, or build with --features bundled",
            dir.display()
        );
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
}
