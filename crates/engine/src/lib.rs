//! Epochs, shards, flow control, recovery and the pipeline's handle.
