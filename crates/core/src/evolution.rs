//! Schema evolution policy: facts in, decision out.
