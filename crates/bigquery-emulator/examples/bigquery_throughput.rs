//! Appends rows of some 700 bytes to a default stream and says how fast: `bigquery_throughput ROWS ROWS_PER_REQUEST CONNECTIONS`.

use std::io::Write as _;
use std::time::Instant;

use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::big_query_write_client::BigQueryWriteClient;
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::{
    AppendRowsRequest, ProtoRows, ProtoSchema, append_rows_request,
};
use millstream_bigquery_emulator::Server;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use tonic::Request;
use tonic::transport::Channel;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const TEXTS: usize = 12;
const NUMBERS: usize = 8;

fn descriptor() -> DescriptorProto {
    let field = |name: String, number: usize, kind: Type| FieldDescriptorProto {
        name: Some(name),
        number: Some(number as i32),
        label: Some(Label::Optional as i32),
        r#type: Some(kind as i32),
        ..FieldDescriptorProto::default()
    };
    let texts = (1..=TEXTS).map(|i| field(format!("t{i}"), i, Type::String));
    let numbers = (1..=NUMBERS).map(|i| field(format!("n{i}"), TEXTS + i, Type::Int64));
    DescriptorProto { name: Some("Row".into()), field: texts.chain(numbers).collect(), ..Default::default() }
}

/// A row's bytes.
fn row(n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 1..=TEXTS {
        prost::encoding::string::encode(i as u32, &format!("{n:010}{}", "x".repeat(40)), &mut bytes);
    }
    for i in 1..=NUMBERS {
        prost::encoding::int64::encode((TEXTS + i) as u32, &((n * 1_000_003) as i64), &mut bytes);
    }
    bytes
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |otherwise| numbers.next().unwrap_or(Ok(otherwise));
    let (rows, portion, connections) = (next(1_000_000)?, next(5_000)?, next(2)?);
    let server = Server::builder().dataset("p", "d", "US").start().await?;
    let columns =
        (1..=TEXTS).map(|i| format!("t{i} STRING")).chain((1..=NUMBERS).map(|i| format!("n{i} INT64")));
    let sql = format!("CREATE TABLE d.t ({})", columns.collect::<Vec<_>>().join(", "));
    query(&server, &sql).await?;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for connection in 0..connections {
        let address = format!("http://{}", server.grpc());
        tasks.push(tokio::spawn(async move {
            append(address, connection, rows / connections, portion).await.map_err(|e| e.to_string())
        }));
    }
    let mut bytes = 0;
    for task in tasks {
        bytes += task.await??;
    }
    let took = started.elapsed().as_secs_f64();
    let count = query(&server, "SELECT COUNT(*) FROM d.t").await?;
    let (speed, size, read) =
        (rows as f64 / took, bytes as f64 / rows as f64, started.elapsed().as_secs_f64());
    writeln!(std::io::stdout(), "{speed:.0} rows/s of {size:.0} bytes; visible after {read:.2} s; {count}")?;
    server.stop().await;
    Ok(())
}

async fn append(address: String, connection: u64, rows: u64, portion: u64) -> Result<usize, Failed> {
    let mut client = BigQueryWriteClient::new(Channel::from_shared(address)?.connect().await?);
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
    request.metadata_mut().insert("x-goog-request-params", "write_stream=x".parse()?);
    let mut responses = client.append_rows(request).await?.into_inner();
    let serialized_rows: Vec<_> = (0..portion).map(|n| row(connection * portion + n).into()).collect();
    let bytes: usize = serialized_rows.iter().map(bytes::Bytes::len).sum();
    let requests = rows / portion;
    tokio::spawn(async move {
        for n in 0..requests {
            let schema = (n == 0).then(|| ProtoSchema { proto_descriptor: Some(descriptor()) });
            let rows = ProtoRows { serialized_rows: serialized_rows.clone() };
            let data = append_rows_request::ProtoData { writer_schema: schema, rows: Some(rows) };
            let request = AppendRowsRequest {
                write_stream: "projects/p/datasets/d/tables/t/streams/_default".into(),
                rows: Some(append_rows_request::Rows::ProtoRows(data)),
                ..AppendRowsRequest::default()
            };
            if sender.send(request).await.is_err() {
                break;
            }
        }
    });
    let mut done = 0;
    while let Some(response) = responses.message().await? {
        if !response.row_errors.is_empty() {
            return Err(format!("{:?}", response.row_errors[0]).into());
        }
        done += 1;
    }
    Ok(bytes * done)
}

async fn query(server: &millstream_bigquery_emulator::Running, sql: &str) -> Result<String, Failed> {
    use http_body_util::{BodyExt, Full};
    let stream = tokio::net::TcpStream::connect(server.rest()).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = serde_json::json!({"query": sql, "useLegacySql": false}).to_string();
    let request = hyper::Request::post("/bigquery/v2/projects/p/queries")
        .header("host", "x")
        .body(Full::new(bytes::Bytes::from(body)))?;
    let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
    let json: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(json["rows"].to_string())
}
