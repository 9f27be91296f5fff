//! Appending to a server that loses connections, answers with errors and refuses rows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1 as pb;
use millstream_bigquery::{
    AppendOptions, Appender, Batch, ColumnType, Descriptor, Field, RowWriter, Rows, Storage, WriteErrorKind,
};
use proptest::prelude::*;
use server::{Fault, Server};
use tonic::Code;

const STREAM: &str = "projects/p/datasets/d/tables/t/streams/s";

fn descriptor(columns: usize) -> Descriptor {
    let fields: Vec<_> = (0..columns).map(|i| Field::new(format!("c{i}"), ColumnType::Int64)).collect();
    Descriptor::new(&fields).unwrap()
}

/// `None` is a row that the server refuses.
fn rows(values: &[Option<i64>]) -> Rows {
    let mut writer = RowWriter::new();
    for value in values {
        let mut row = writer.begin();
        if let Some(value) = value {
            row.put_int(1, *value);
        }
        row.finish();
    }
    writer.take()
}

fn batch(stream: &str, values: &[Option<i64>]) -> Batch {
    Batch { stream: stream.into(), descriptor: descriptor(1), rows: rows(values) }
}

fn good(values: impl IntoIterator<Item = i64>) -> Vec<Vec<u8>> {
    values.into_iter().map(|v| rows(&[Some(v)]).row(0).to_vec()).collect()
}

fn options() -> AppendOptions {
    AppendOptions { answer_timeout: Duration::from_millis(400), ..AppendOptions::default() }
}

async fn to_stream(server: &Server, options: AppendOptions) -> Appender {
    let storage = Storage::new(&server.start().await, 1).unwrap();
    Appender::to_stream(storage, STREAM.into(), 0, options)
}

async fn to_default(server: &Server, options: AppendOptions) -> Appender {
    Appender::to_default_streams(Storage::new(&server.start().await, 1).unwrap(), options)
}

#[tokio::test]
async fn bad_rows_are_told_by_their_place_and_offsets_close_up() {
    let server = Server::default();
    let appender = to_stream(&server, AppendOptions { request_bytes_max: 12, ..options() }).await;
    let first = appender.append(batch(STREAM, &[Some(1), None, Some(2), Some(3), None])).await.unwrap();
    let second = appender.append(batch(STREAM, &[None])).await.unwrap();
    let third = appender.append(batch(STREAM, &[Some(4)])).await.unwrap();
    let acked = first.await.unwrap();
    let places: Vec<_> = acked.row_errors.iter().map(|e| (e.batch, e.index)).collect();
    assert_eq!((acked.last_offset, places), (Some(2), vec![(0, 1), (0, 4)]));
    assert_eq!(second.await.unwrap().last_offset, None);
    assert_eq!(third.await.unwrap().last_offset, Some(3));
    let all = appender.flush().await.unwrap();
    assert_eq!((all.last_offset, all.row_errors.len()), (Some(3), 3));
    assert_eq!(server.state().streams[STREAM], good(1..=4));
}

#[tokio::test]
async fn an_error_that_stays_ends_a_stream_but_only_a_batch_of_default_streams() {
    let server = Server::default();
    server.state().faults = [Fault::None, Fault::Error(Code::InvalidArgument)].into();
    let appender = to_stream(&server, options()).await;
    appender.append(batch(STREAM, &[Some(1)])).await.unwrap().await.unwrap();
    let error = appender.append(batch(STREAM, &[Some(2)])).await.unwrap().await.unwrap_err();
    assert_eq!(error.kind(), WriteErrorKind::Invalid);
    assert_eq!(appender.append(batch(STREAM, &[Some(3)])).await.unwrap().await, Err(error.clone()));
    assert_eq!(appender.flush().await, Err(error.clone()));
    assert_eq!(appender.flush().await, Err(error));

    let server = Server::default();
    server.state().faults = [Fault::Refused(Code::NotFound), Fault::Error(Code::InvalidArgument)].into();
    let appender = to_default(&server, options()).await;
    let mut outcomes = Vec::new();
    for i in 0..4 {
        outcomes.push(appender.append(batch(STREAM, &[Some(i)])).await.unwrap().await.map_err(|e| e.kind()));
    }
    assert_eq!(outcomes[0], Err(WriteErrorKind::NotFound));
    assert_eq!(outcomes[1], Err(WriteErrorKind::Invalid));
    assert!(outcomes[2].is_ok() && outcomes[3].is_ok());
    assert_eq!(server.state().streams[STREAM], good(2..4));
}

#[tokio::test]
async fn rows_of_another_are_no_success() {
    let server = Server::default();
    server.state().streams.insert(STREAM.to_owned(), good(0..5));
    let appender = to_stream(&server, options()).await;
    let error = appender.append(batch(STREAM, &[Some(1)])).await.unwrap().await.unwrap_err();
    assert_eq!((error.kind(), error.expected_offset()), (WriteErrorKind::AlreadyExists, Some(5)));
}

/// The service ends idle connections by an error whose code can be that of rows that are there already. Taken for that, the rows that
/// were on their way would have been lost.
#[tokio::test]
async fn the_end_of_a_connection_is_no_success() {
    let server = Server::default();
    server.state().faults = [Fault::Refused(Code::AlreadyExists), Fault::Refused(Code::AlreadyExists)].into();
    let appender = to_stream(&server, options()).await;
    let acked = appender.append(batch(STREAM, &[Some(1)])).await.unwrap().await.unwrap();
    assert_eq!(acked.last_offset, Some(0));
    assert_eq!(server.state().streams[STREAM], good([1]));
}

#[tokio::test]
async fn rows_that_the_server_has_lost_are_missed() {
    let server = Server::default();
    let appender = to_stream(&server, options()).await;
    appender.append(batch(STREAM, &[Some(1), Some(2)])).await.unwrap().await.unwrap();
    server.state().streams.get_mut(STREAM).unwrap().pop();
    let error = appender.append(batch(STREAM, &[Some(3)])).await.unwrap().await.unwrap_err();
    assert_eq!(error.kind(), WriteErrorKind::OutOfRange);
}

#[tokio::test]
async fn patience_has_an_end() {
    let server = Server::default();
    server.state().faults = std::iter::repeat_n(Fault::Error(Code::ResourceExhausted), 1000).collect();
    let appender =
        to_default(&server, AppendOptions { patience: Duration::from_millis(300), ..options() }).await;
    let error = appender.append(batch(STREAM, &[Some(1)])).await.unwrap().await.unwrap_err();
    assert!(error.is_transient());
    server.state().faults.clear();
    appender.append(batch(STREAM, &[Some(2)])).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn a_row_that_no_request_takes_is_a_bad_row() {
    let server = Server::default();
    let appender = to_default(&server, AppendOptions { request_bytes_max: 6, ..options() }).await;
    let acked =
        appender.append(batch(STREAM, &[Some(1), Some(i64::MAX), Some(2)])).await.unwrap().await.unwrap();
    assert_eq!(acked.row_errors.iter().map(|e| e.index).collect::<Vec<_>>(), [1]);
    assert_eq!(server.state().streams[STREAM], good([1, 2]));
}

#[tokio::test]
async fn idle_connections_are_closed_and_shapes_have_their_own() {
    let server = Server::default();
    let appender = to_stream(&server, AppendOptions { idle: Duration::from_millis(50), ..options() }).await;
    appender.append(batch(STREAM, &[Some(1)])).await.unwrap().await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    appender.append(batch(STREAM, &[Some(2)])).await.unwrap().await.unwrap();
    assert_eq!(server.state().connections, 2);
    let wider = Batch { descriptor: descriptor(2), ..batch(STREAM, &[Some(3)]) };
    drop(appender.append(batch(STREAM, &[Some(4)])).await.unwrap());
    drop(appender.append(wider).await.unwrap());
    assert_eq!(appender.flush().await.unwrap().last_offset, Some(3));
    assert!(server.state().connections >= 3);
}

#[tokio::test]
async fn a_new_schema_is_told() {
    let server = Server::default();
    let field = pb::TableFieldSchema { name: "new".to_owned(), r#type: 2, ..pb::TableFieldSchema::default() };
    server.state().updated = Some(pb::TableSchema { fields: vec![field] });
    let appender = to_default(&server, options()).await;
    let acked = appender.append(batch(STREAM, &[Some(1)])).await.unwrap().await.unwrap();
    assert_eq!(acked.updated_schemas[0].fields, [Field::new("new", ColumnType::Int64)]);
    assert_eq!(acked.updated_schemas[0].stream, Arc::from(STREAM));
    assert_eq!(appender.flush().await.unwrap().updated_schemas.len(), 1);
}

#[tokio::test]
async fn what_is_not_acknowledged_is_bounded() {
    let server = Server::default();
    server.state().faults = [Fault::Silence].into();
    let appender = to_default(
        &server,
        AppendOptions { bytes_max: 10, answer_timeout: Duration::from_secs(60), ..options() },
    )
    .await;
    drop(appender.append(batch(STREAM, &[Some(1), Some(2)])).await.unwrap());
    let more = appender.append(batch(STREAM, &[Some(3)]));
    assert!(tokio::time::timeout(Duration::from_millis(200), more).await.is_err(), "there is no room");
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::LostBefore),
        2 => Just(Fault::LostAfter),
        1 => Just(Fault::Error(Code::Internal)),
        1 => Just(Fault::Error(Code::ResourceExhausted)),
        1 => Just(Fault::Refused(Code::Aborted)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever happens on the way: good rows are in the stream once and in order, bad ones are told.
    #[test]
    fn every_row_is_there_once(
        batches in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.9, 0..1000i64), 0..6), 1..12),
        faults in prop::collection::vec(fault(), 0..10),
        request_bytes_max in 6..30usize,
        with_offsets in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::default();
            server.state().faults = faults.into();
            let options = AppendOptions { request_bytes_max, requests_max: 4, ..AppendOptions::default() };
            let appender = if with_offsets { to_stream(&server, options).await } else { to_default(&server, options).await };
            for values in &batches {
                drop(appender.append(batch(STREAM, values)).await.unwrap());
            }
            let acked = appender.flush().await.unwrap();
            let mut told: Vec<_> = acked.row_errors.iter().map(|e| (e.batch as usize, e.index)).collect();
            told.sort_unstable();
            let bad = batches.iter().enumerate().flat_map(|(b, values)| {
                values.iter().enumerate().filter(|(_, v)| v.is_none()).map(move |(i, _)| (b, i))
            });
            assert_eq!(told, bad.collect::<Vec<_>>());
            let expected = good(batches.iter().flatten().filter_map(|v| *v));
            let written = server.state().streams.get(STREAM).cloned().unwrap_or_default();
            if with_offsets {
                assert_eq!(written, expected);
                let last = (!expected.is_empty()).then_some(expected.len() as i64 - 1);
                assert_eq!(acked.last_offset, last);
            } else {
                assert!(written.len() >= expected.len() && expected.iter().all(|row| written.contains(row)));
            }
        });
    }
}

/// Every table had a connection of its own for as long as anything came for it, and two minutes longer: a few pipelines with a
/// thousand tables each took all that a project may have.
#[tokio::test]
async fn connections_are_bounded_and_given_to_those_that_have_rows() {
    let server = Server::default();
    let storage = Storage::new(&server.start().await, 8).unwrap();
    let streams: Vec<Arc<str>> =
        (0..1200).map(|i| format!("projects/p/datasets/d/tables/t{i}/streams/s").into()).collect();
    let appenders: Vec<_> = streams
        .iter()
        .map(|stream| Appender::to_stream(storage.clone(), stream.clone(), 0, AppendOptions::default()))
        .collect();
    for round in 0..2 {
        let mut handles = Vec::new();
        for (appender, stream) in appenders.iter().zip(&streams) {
            handles.push(appender.append(batch(stream, &[Some(round)])).await.unwrap());
        }
        for handle in handles {
            assert_eq!(handle.await.unwrap().last_offset, Some(round));
        }
    }
    let state = server.state();
    assert!(streams.iter().all(|stream| state.streams[&**stream] == good(0..2)), "in order, none twice");
    assert!((100..=500).contains(&state.together.1), "{:?}", state.together);
}
