//! The emulator in a process of its own, with its data in a directory: `serve DIR`. Prints where it listens.

use millstream_emulator::pubsub::Server;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "whoever started it reads the address")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: serve DIR")?;
    let server = Server::builder().data(directory).start().await?;
    println!("{}", server.address());
    std::future::pending::<()>().await;
    Ok(())
}
