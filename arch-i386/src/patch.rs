//! Write order and publication: nothing to do here.
//!
//! A breakpoint is one byte, whose store is seen whole or not at all by other processors, and instruction
//! caches are coherent with stores. What remains is that a processor may still execute prefetched bytes until
//! its next serialising event: `Host::sync_cores` is that event (SDM volume 3, 10.1.3). A slot's tail is
//! switched by one byte as well, see [`probe_x86_decode::slot`].
