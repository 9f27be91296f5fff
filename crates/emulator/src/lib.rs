//! Emulators of cloud services, to test against without an account: for now Google Cloud Pub/Sub. Limits: no policies, no TLS.

pub mod pubsub;
