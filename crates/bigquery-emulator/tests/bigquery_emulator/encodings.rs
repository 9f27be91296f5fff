//! Values of every type, as clients encode them.

use crate::world::*;
use millstream_bigquery_emulator::Server;
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use serde_json::{Value, json};
use tonic::Code;

/// One column, one proto type, one value.
async fn one(world: &mut World, column: &str, kind: Type, row: impl Message) -> Result<Value, String> {
    world.sql(&format!("CREATE OR REPLACE TABLE d.t (c {column})")).await;
    let mut connection = world.connect().await;
    let request = request_of(DEFAULT, None, Some(descriptor(vec![field("c", 1, kind)])), &[row]);
    let response = connection.send(request).await.map_err(|status| status.message().to_owned())?;
    if let Err((code, text)) = answer(&response) {
        assert_eq!(code, Code::InvalidArgument);
        return Err(response.row_errors.first().map_or(text, |error| error.message.clone()));
    }
    Ok(world.sql("SELECT c FROM d.t").await[0][0].clone())
}

#[derive(Clone, PartialEq, Message)]
struct Int(#[prost(int64, optional, tag = "1")] Option<i64>);

#[derive(Clone, PartialEq, Message)]
struct Signed(#[prost(sint64, optional, tag = "1")] Option<i64>);

#[derive(Clone, PartialEq, Message)]
struct Double(#[prost(double, optional, tag = "1")] Option<f64>);

#[derive(Clone, PartialEq, Message)]
struct Text(#[prost(string, optional, tag = "1")] Option<String>);

#[derive(Clone, PartialEq, Message)]
struct Octets(#[prost(bytes = "vec", optional, tag = "1")] Option<Vec<u8>>);

#[tokio::test(flavor = "multi_thread")]
async fn integers() {
    let mut world = World::empty(Server::builder()).await;
    let w = &mut world;
    assert_eq!(one(w, "INT64", Type::Int64, Int(Some(i64::MIN))).await, Ok(json!("-9223372036854775808")));
    assert_eq!(one(w, "INT64", Type::Sint64, Signed(Some(-3))).await, Ok(json!("-3")));
    assert_eq!(one(w, "BOOL", Type::Int64, Int(Some(2))).await, Ok(json!("true")));
    assert_eq!(one(w, "DATE", Type::Int32, Int(Some(-719_162))).await, Ok(json!("0001-01-01")));
    assert_eq!(one(w, "DATE", Type::Int32, Int(Some(2_932_896))).await, Ok(json!("9999-12-31")));
    assert!(one(w, "DATE", Type::Int32, Int(Some(2_932_897))).await.is_err());
    assert_eq!(one(w, "TIMESTAMP", Type::Int64, Int(Some(-1))).await, Ok(json!("-1")));
    assert!(one(w, "TIMESTAMP", Type::Int64, Int(Some(i64::MAX))).await.unwrap_err().contains("Field c"));
    assert_eq!(one(w, "NUMERIC", Type::Int64, Int(Some(7))).await, Ok(json!("7")));
    assert_eq!(one(w, "INT64", Type::Int64, Int(None)).await, Ok(Value::Null));
    assert!(one(w, "STRING", Type::Int64, Int(Some(1))).await.unwrap_err().contains("mismatched"));
    assert!(one(w, "DATETIME", Type::Int64, Int(Some(1))).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_and_bytes() {
    let mut world = World::empty(Server::builder()).await;
    let w = &mut world;
    let text = |text: &str| Text(Some(text.to_owned()));
    for (column, given, wanted) in [
        ("STRING", "é", "é"),
        ("BYTES", "a", "YQ=="),
        ("DATE", "2024-02-29", "2024-02-29"),
        ("DATETIME", "2024-02-29 01:02:03.5", "2024-02-29T01:02:03.500000"),
        ("TIME", "01:02:03", "01:02:03"),
        ("TIMESTAMP", "1970-01-01T01:00:00+01:00", "0"),
        ("NUMERIC", "-1.500", "-1.5"),
        ("BIGNUMERIC", "1e3", "1000"),
        ("JSON", "[1.10]", "[1.10]"),
        ("GEOGRAPHY", "POINT(1 2)", "POINT(1 2)"),
        ("INTERVAL", "0-0 1 0:0:0", "0-0 1 0:0:0"),
    ] {
        assert_eq!(one(w, column, Type::String, text(given)).await, Ok(json!(wanted)), "{column}");
    }
    for (column, wrong) in
        [("DATE", "x"), ("JSON", "{"), ("NUMERIC", "1e30"), ("NUMERIC", "1.0000000001"), ("TIME", "25:00:00")]
    {
        assert!(one(w, column, Type::String, text(wrong)).await.is_err(), "{column} {wrong}");
    }
    let invalid = Octets(Some(vec![0xff]));
    assert!(one(w, "STRING", Type::String, invalid).await.unwrap_err().contains("UTF-8"));
    let unscaled = Octets(Some((-1_500_000_000i64).to_le_bytes().to_vec()));
    assert_eq!(one(w, "NUMERIC", Type::Bytes, unscaled).await, Ok(json!("-1.5")));
    assert!(one(w, "NUMERIC", Type::Bytes, Octets(Some(i128::MAX.to_le_bytes().to_vec()))).await.is_err());
    assert!(one(w, "NUMERIC", Type::Bytes, Octets(Some(vec![0; 17]))).await.is_err());
    assert_eq!(one(w, "FLOAT64", Type::Double, Double(Some(f64::NAN))).await, Ok(json!("NaN")));
    assert_eq!(one(w, "BIGNUMERIC", Type::Double, Double(Some(0.25))).await, Ok(json!("0.25")));
}
