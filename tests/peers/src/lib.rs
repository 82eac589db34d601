//! Other libraries' probes, each behind three C functions: `peer_NAME_plant` puts one on a function (0 if it
//! is there), `peer_NAME_hits` says how often its handler ran, `peer_NAME_remove` takes it away. The handlers
//! count, and nothing else. The benchmark `hit` of tests/user loads this; where a library does not exist for
//! an architecture, its functions are missing.

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod hook;
#[cfg(target_arch = "x86_64")]
mod trap;
