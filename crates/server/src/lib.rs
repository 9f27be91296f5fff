//! The control plane: it stands beside the data's way, only observes it, and asks for what its [`Handle`] allows: drain,
//! cancel, pause, resume, a savepoint.
//!
//! | request | answer |
//! |---|---|
//! | `GET /healthz` | 200: the process is alive |
//! | `GET /readyz` | 200 while events flow or intake is paused, else 503 with the phase |
//! | `GET /api/pipeline` | how the pipeline stands: phase, epoch, counters, rates, lag, latency, failure, notices |
//! | `GET /api/tables` | the counts of each table |
//! | `GET /api/checkpoints` | the last checkpoints of this run |
//! | `GET /metrics` | the same figures for Prometheus; [`families`] lists them |
//! | `POST /api/drain`, `cancel`, `pause`, `resume` | 202: asked |
//! | `POST /api/savepoint` with `{"name": …}` | 200 with the place of the savepoint |
//!
//! Every other answer is `{"error": text}`. Limits: 128 connections a listener, requests of 64 KiB, 70 s for an answer. There is no
//! TLS: over a network that is not trusted, put a proxy before it. Row values and secrets appear in no answer.
//!
//! [`Handle`]: millstream_engine::Handle

mod api;
mod exposition;
pub mod families;
mod guard;
mod json;
mod listener;
mod pipeline;
mod process;
mod rates;

pub use api::{api, metrics_only};
pub use guard::{Guard, Token};
pub use json::{counters_json, status_json};
pub use listener::{Bound, Server};
pub use pipeline::Pipeline;
pub use rates::{Rate, Rates};
