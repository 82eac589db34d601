//! What stands: of each probe and place, of each context and task, and of the program as a whole.
//!
//! Both halves use it; it imports neither. `probes` composes the other files:
//!
//! - a place: `places`, `point` (and the probes on it), `text` (what stands there), `slots`, `detours` and
//!   `detour`;
//! - a call that is followed: `instance` (with `life`, `ends`), its `pool`, its `stub`, the half of a probe
//!   that is about it (`return_probe`);
//! - who runs: `context` (with `frame`), `section`, `pinned`, `task`; `owner` and `counter` are what contexts
//!   use each by itself, `common` (with `spare`) what they share;
//! - a probe: `pending` before it is registered, `owned` who frees it, `handler` what hits call, `lender`
//!   what handlers get, `tally` what users are told; `watch` on data;
//! - the program: the `host`, `lock`, `books` and `locked` (who may write all that), `switches` (what has
//!   been asked for), `quiesce` (when nobody can still be inside), `program` (the way here from a stub).

pub(crate) mod books;
pub(crate) mod common;
pub(crate) mod context;
pub(crate) mod counter;
pub(crate) mod detour;
pub(crate) mod detours;
pub(crate) mod ends;
pub(crate) mod frame;
pub(crate) mod handler;
pub mod host;
pub(crate) mod instance;
pub(crate) mod lender;
pub(crate) mod life;
pub(crate) mod lock;
pub(crate) mod locked;
pub(crate) mod owned;
pub(crate) mod owner;
pub(crate) mod pending;
pub(crate) mod pinned;
pub(crate) mod places;
pub(crate) mod point;
pub(crate) mod pool;
pub(crate) mod probes;
pub(crate) mod program;
pub(crate) mod quiesce;
pub(crate) mod refused;
pub(crate) mod return_probe;
pub(crate) mod section;
pub(crate) mod slots;
pub(crate) mod spare;
pub(crate) mod stub;
pub(crate) mod switches;
pub(crate) mod tally;
pub(crate) mod task;
pub(crate) mod text;
pub(crate) mod watch;
