//! The conformance suite and the rest, run in a Linux process.
