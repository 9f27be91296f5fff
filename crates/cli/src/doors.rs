//! The addresses at which a running pipeline answers over HTTP: taken before it starts, served while it runs.

use std::sync::Arc;

use millstream_core::Result;
use millstream_engine::Handle;
use millstream_server::{Bound, Guard, Pipeline, Server, api, metrics_only};

use crate::plan::Plan;

/// Addresses that are taken.
pub(crate) struct Doors {
    http: Option<Bound>,
    metrics: Option<Bound>,
}

/// What answers at them.
pub(crate) struct Answering(Vec<Server>);

impl Doors {
    /// Takes the plan's addresses.
    pub(crate) async fn open(plan: &Plan) -> Result<Self> {
        let http = match &plan.http {
            Some(http) => Some(Bound::bind(http.listen, "http.listen").await?),
            None => None,
        };
        let metrics = match plan.metrics {
            Some(listen) => Some(Bound::bind(listen, "metrics.listen").await?),
            None => None,
        };
        Ok(Self { http, metrics })
    }

    /// Answers questions about the pipeline, and passes on what it is told.
    pub(crate) fn answer(self, plan: &Plan, handle: &Handle) -> (Arc<Pipeline>, Answering) {
        let address = |bound: &Option<Bound>| bound.as_ref().map(Bound::address);
        let (http, metrics) = (address(&self.http), address(&self.metrics));
        let pipeline = Arc::new(Pipeline::new(&plan.pipeline, handle.clone(), http, metrics));
        let mut servers = Vec::new();
        if let (Some(bound), Some(http)) = (self.http, &plan.http) {
            tracing::info!("{}: the HTTP API is at http://{}", plan.pipeline, bound.address());
            servers.push(bound.serve(api(pipeline.clone(), http.guard())));
        }
        if let Some(bound) = self.metrics {
            tracing::info!("{}: metrics are at http://{}/metrics", plan.pipeline, bound.address());
            let guard = Guard::new(bound.address().ip(), None);
            servers.push(bound.serve(metrics_only(pipeline.clone(), guard)));
        }
        (pipeline, Answering(servers))
    }
}

impl Answering {
    /// Ends, after the answers that are under way.
    pub(crate) async fn close(self) {
        for server in self.0 {
            server.close().await;
        }
    }
}
