//! Generates the gRPC server's trait, and makes tests and examples find the prebuilt libduckdb at run time. The messages
//! come from a crate, so neither .proto files nor protoc are needed; those of AppendRows are this crate's (`wire`), which
//! keep a row's bytes and a descriptor's extensions as they were sent.

use tonic_build::manual::{Builder, Method, Service};

const API: &str = "googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1";
const PROST: &str = "tonic_prost::ProstCodec";

fn main() {
    Builder::new().build_client(false).compile(&[write()]);
    link();
}

/// Crates that build a binary over this one need the same `rustc-link-arg`, since cargo does not pass it on.
fn link() {
    println!("cargo:rerun-if-env-changed=DUCKDB_LIB_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_BUNDLED").is_some() {
        return;
    }
    if let Some(dir) = std::env::var_os("DUCKDB_LIB_DIR").map(std::path::PathBuf::from) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
    }
}

fn method(route: &str, name: &str, input: &str, output: &str) -> Method {
    Method::builder()
        .name(name)
        .route_name(route)
        .codec_path(PROST)
        .input_type(format!("{API}::{input}"))
        .output_type(format!("{API}::{output}"))
        .build()
}

fn write() -> Service {
    let append = Method::builder()
        .name("append_rows")
        .route_name("AppendRows")
        .codec_path(PROST)
        .input_type("crate::wire::AppendRowsRequest")
        .output_type("crate::wire::AppendRowsResponse")
        .client_streaming()
        .server_streaming()
        .build();
    Service::builder()
        .name("BigQueryWrite")
        .package("google.cloud.bigquery.storage.v1")
        .method(method("CreateWriteStream", "create_write_stream", "CreateWriteStreamRequest", "WriteStream"))
        .method(append)
        .method(method("GetWriteStream", "get_write_stream", "GetWriteStreamRequest", "WriteStream"))
        .method(method(
            "FinalizeWriteStream",
            "finalize_write_stream",
            "FinalizeWriteStreamRequest",
            "FinalizeWriteStreamResponse",
        ))
        .method(method(
            "BatchCommitWriteStreams",
            "batch_commit_write_streams",
            "BatchCommitWriteStreamsRequest",
            "BatchCommitWriteStreamsResponse",
        ))
        .method(method("FlushRows", "flush_rows", "FlushRowsRequest", "FlushRowsResponse"))
        .build()
}
