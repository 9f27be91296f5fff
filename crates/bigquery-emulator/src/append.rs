//! AppendRows: the gRPC connection around [`crate::connection`].

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::api::storage_error::StorageErrorCode;
use crate::connection::Connection;
use crate::status;
use crate::warehouse::Warehouse;
use crate::wire::{AppendRowsRequest, AppendRowsResponse, Response};

/// Responses that may wait for a slow client.
const WAITING: usize = 64;

/// The responses of a connection.
pub(crate) type Responses = ReceiverStream<Result<AppendRowsResponse, Status>>;

/// Serves a connection.
pub(crate) fn serve(warehouse: Arc<Warehouse>, requests: Streaming<AppendRowsRequest>) -> Responses {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        if let Err(status) = run(warehouse, requests, &sender).await {
            // The client may be gone.
            let _ = sender.send(Err(status)).await;
        }
    });
    ReceiverStream::new(receiver)
}

async fn run(
    warehouse: Arc<Warehouse>,
    mut requests: Streaming<AppendRowsRequest>,
    responses: &mpsc::Sender<Result<AppendRowsResponse, Status>>,
) -> Result<(), Status> {
    let mut connection = Connection::new(warehouse.serial());
    let mut left = None;
    while let Some(request) = requests.message().await? {
        let dice = warehouse.dice();
        dice.slow_append().await;
        let destination = connection.destination(&request.write_stream).to_owned();
        let table = destination.split("/streams/").next().unwrap_or_default();
        left = dice.grpc("AppendRows", &[&destination, table])?.or(left);
        if dice.happens(dice.faults.expired) {
            // Only streams that an application made expire.
            warehouse.streams().remove(&destination);
        }
        let response = if dice.happens(dice.faults.throttle) {
            let message =
                "Exceeds 'AppendRows throughput' quota, user_id: project (status: INSUFFICIENT_TOKENS)";
            let status = Status::resource_exhausted(message);
            AppendRowsResponse {
                response: Some(Response::Error(status::rpc(&status))),
                write_stream: destination,
                ..Default::default()
            }
        } else {
            let warehouse = warehouse.clone();
            // Reading rows takes the processor, and may wait for the database.
            let work = tokio::task::spawn_blocking(move || {
                let response = connection.append(&warehouse, request);
                (connection, response)
            });
            let (back, response) = work.await.map_err(|e| Status::internal(e.to_string()))?;
            connection = back;
            response?
        };
        dice.answer(())?;
        if responses.send(Ok(response)).await.is_err() {
            return Ok(());
        }
        left = left.map(|left: u64| left.saturating_sub(1));
        if left == Some(0) || dice.happens(dice.faults.cut) {
            return Err(Status::unavailable("The connection was closed."));
        }
    }
    Ok(())
}

/// INVALID_ARGUMENT of columns that a table lacks.
pub(crate) fn extra_fields(table: &str, message: String) -> Status {
    status::storage(Code::InvalidArgument, StorageErrorCode::SchemaMismatchExtraFields, table, message)
}
