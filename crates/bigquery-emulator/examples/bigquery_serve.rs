//! Serves the emulator on free ports, prints them, and ends with its input.

use std::io::{Read, Write};

use millstream_bigquery_emulator::{Faults, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = Server::builder();
    if let Some(data) = std::env::var_os("EMULATOR_DATA") {
        builder = builder.data(data);
    }
    if let Ok(faults) = std::env::var("EMULATOR_FAULTS") {
        builder = builder.faults(faults.parse::<Faults>()?);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let server = runtime.block_on(builder.start())?;
    writeln!(std::io::stdout(), "{} {}", server.rest(), server.grpc())?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(server.stop());
    Ok(())
}
