//! A Linux process as a host of probe-core.
