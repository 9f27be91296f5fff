//! Which permissions a caller holds: all of them on what exists, none on what faults deny.

use std::sync::Arc;

use tonic::{Code, Request, Response, Status};

use super::api::i_a_m_policy_server::IAMPolicy;
use super::broker::Broker;

/// `google.iam.v1.TestIamPermissionsRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TestIamPermissionsRequest {
    #[prost(string, tag = "1")]
    pub(crate) resource: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) permissions: Vec<String>,
}

/// `google.iam.v1.TestIamPermissionsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TestIamPermissionsResponse {
    #[prost(string, repeated, tag = "1")]
    pub(crate) permissions: Vec<String>,
}

/// The one method of the IAMPolicy service that clients ask without being administrators.
#[derive(Debug, Clone)]
pub(crate) struct PolicyService(pub(crate) Arc<Broker>);

#[tonic::async_trait]
impl IAMPolicy for PolicyService {
    async fn test_iam_permissions(
        &self,
        request: Request<TestIamPermissionsRequest>,
    ) -> Result<Response<TestIamPermissionsResponse>, Status> {
        let TestIamPermissionsRequest { resource, permissions } = request.into_inner();
        let held = match self.0.dice().call("TestIamPermissions", &[&resource]) {
            Ok(_) => self.0.topic(&resource).is_ok() || self.0.subscription(&resource).is_ok(),
            Err(status) if status.code() == Code::PermissionDenied => false,
            Err(status) => return Err(status),
        };
        let permissions = if held { permissions } else { Vec::new() };
        Ok(Response::new(TestIamPermissionsResponse { permissions }))
    }
}
